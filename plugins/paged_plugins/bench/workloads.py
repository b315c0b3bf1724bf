"""The requests of the benchmarks: prompts of token ids with fixed output lengths.

A workload is drawn with a fixed seed. Each repeat shifts all token ids by the same amount, so that
the lengths stay and no repeat hits the cached prefixes of an earlier one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Protocol, Self

import typer

from paged_core.errors import SettingsError
from paged_core.interfaces.tokenizer import Tokenizer
from paged_plugins.workloads.request import WorkloadRequest, linked, token_ids
from paged_plugins.workloads.spec import WorkloadSpec
from paged_plugins.workloads.traces.files import TokenCount, estimated_tokens

_NUM_IDS = 10_000
_SHIFT = 3331
_LAB_SHIFT = 10**17
"""Between the content ids of two repeats: more than any workload of the lab has."""
_CONVERSATIONS, _TURNS = 8, 4

Draw = tuple[list[int], int, int | None]
"""A prompt, the number of tokens to generate, and the place of the request that it follows."""


class Workload(Protocol):
    """Named requests."""

    @property
    def name(self) -> str:
        """What tables call it."""

    def requests(self, repeat: int = 0, *, vocab_size: int = _NUM_IDS) -> list[WorkloadRequest]:
        """Return the requests of one repeat that follow no other, in arrival order. The ids in
        their prompts are token ids."""


@dataclass(frozen=True, slots=True)
class BatchWorkload:
    """Requests that arrive at once; ``make(random)`` draws them."""

    name: str
    make: Callable[[random.Random], Sequence[Draw]]

    def requests(self, repeat: int = 0, *, vocab_size: int = _NUM_IDS) -> list[WorkloadRequest]:
        """As in :class:`Workload`."""
        shift = repeat * _SHIFT
        found = []
        for place, (prompt, output, follows) in enumerate(self.make(random.Random(0))):
            ids = tuple((token + shift) % _NUM_IDS % vocab_size for token in prompt)
            request = WorkloadRequest(id=str(place), prompt=(ids,), output=output)
            found.append((request, None if follows is None else str(follows)))
        return linked(found)


@dataclass(frozen=True, slots=True)
class LabWorkload:
    """The requests of a workload of the lab with their arrivals, drawn with seed 0: what is
    simulated can be sent to a live engine."""

    spec: WorkloadSpec
    count_tokens: TokenCount = estimated_tokens

    @classmethod
    def counted(cls, spec: WorkloadSpec, tokenizer: Tokenizer | None) -> Self:
        """Return one whose texts, if a trace has some, are counted with a model's tokenizer."""
        if tokenizer is None:
            return cls(spec)
        encode = tokenizer.encode
        return cls(spec, lambda text: len(encode(text, add_special_tokens=False)))

    @property
    def name(self) -> str:
        """What tables call it."""
        return self.spec.name

    def requests(self, repeat: int = 0, *, vocab_size: int = _NUM_IDS) -> list[WorkloadRequest]:
        """As in :class:`Workload`; repeats differ in their tokens.

        Raises:
            TraceError: a trace is broken.
        """
        shift = repeat * _LAB_SHIFT

        def with_tokens(request: WorkloadRequest) -> WorkloadRequest:
            tokens = token_ids(request.shifted(shift), vocab_size)
            return replace(request, prompt=(tuple(tokens),))

        return linked(
            (with_tokens(request), follows)
            for first in self.spec.build(self.count_tokens).draw(0)
            for request, follows in first.links()
        )


def by_turn(firsts: Sequence[WorkloadRequest]) -> Iterator[tuple[WorkloadRequest, str | None]]:
    """Yield all first turns, then all second turns, and so on, each with the id of the one that it
    follows."""
    turn: list[tuple[WorkloadRequest, str | None]] = [(first, None) for first in firsts]
    while turn:
        yield from turn
        turn = [(each, request.id) for request, _ in turn for each in request.followers]


def longest(firsts: Sequence[WorkloadRequest]) -> int:
    """Return the length of the longest request in tokens, whole prompt and output."""
    whole = (each for first in firsts for each in first.whole_prompts())
    return max((length + request.output for request, length in whole), default=0)


def is_batch(firsts: Sequence[WorkloadRequest]) -> bool:
    """Whether they are what the roofline is known of: nothing waits but later turns of chains."""
    return all(
        not request.at and request.n == 1 and len(request.followers) <= 1
        for first in firsts
        for request in first.family()
    )


def _ids(chance: random.Random, count: int) -> list[int]:
    return [chance.randrange(_NUM_IDS) for _ in range(count)]


def _equal(
    count: int, num_input: int, num_output: int
) -> Callable[[random.Random], Sequence[Draw]]:
    """Return what draws requests that differ in their tokens alone."""
    return lambda chance: [(_ids(chance, num_input), num_output, None) for _ in range(count)]


def _shared(chance: random.Random) -> list[Draw]:
    prefix = _ids(chance, 512)
    return [(prefix + _ids(chance, 32), 32, None) for _ in range(24)]


def _long(chance: random.Random) -> list[Draw]:
    return [(_ids(chance, chance.randint(900, 1500)), 16, None) for _ in range(10)]


def _many(chance: random.Random) -> list[Draw]:
    return [
        (_ids(chance, chance.randint(8, 40)), chance.randint(150, 300), None) for _ in range(40)
    ]


def _conversations(chance: random.Random) -> list[Draw]:
    """Draw all first turns, then all second turns, and so on."""
    items: list[Draw] = []
    for turn in range(_TURNS):
        for _ in range(_CONVERSATIONS):
            num_input = chance.randint(20, 80) if turn else chance.randint(150, 400)
            follows = len(items) - _CONVERSATIONS if turn else None
            items.append((_ids(chance, num_input), chance.randint(48, 96), follows))
    return items


def drawn(
    num_requests: int,
    num_input: tuple[int, int],
    num_output: tuple[int, int],
    num_shared: int = 0,
    name: str = "drawn",
) -> BatchWorkload:
    """Return a workload with lengths drawn uniformly from ranges, both ends included.

    Args:
        num_shared: length of a prefix that all prompts share, in addition to ``num_input``.
    """

    def make(chance: random.Random) -> list[Draw]:
        prefix = _ids(chance, num_shared)
        items: list[Draw] = []
        for _ in range(num_requests):
            length, count = chance.randint(*num_input), chance.randint(*num_output)
            items.append((prefix + _ids(chance, length), count, None))
        return items

    return BatchWorkload(name, make)


NAMED: dict[str, Workload] = {
    workload.name: workload
    for workload in (
        drawn(32, (64, 512), (32, 128), name="W1"),
        BatchWorkload("W2", _equal(16, 32, 128)),
        BatchWorkload("W3", _shared),
        BatchWorkload("W4", _equal(1, 128, 64)),
        BatchWorkload("W5", _long),
        BatchWorkload("W6", _many),
        BatchWorkload("W7", _conversations),
        BatchWorkload("W8", _equal(4, 200, 120)),
    )
}


NumRequests = Annotated[
    int | None,
    typer.Option(min=1, help="Draw a workload of this many requests, in addition to named ones."),
]
InputLength = Annotated[
    str | None,
    typer.Option(metavar="MIN:MAX", help="Tokens of each prompt of a drawn workload: 128."),
]
OutputLength = Annotated[
    str | None,
    typer.Option(metavar="MIN:MAX", help="Tokens that each of its requests generates: 64."),
]
SharedPrefix = Annotated[
    int | None,
    typer.Option(min=0, help="Additional tokens that all of its prompts share as a prefix: 0."),
]


def drawing(
    num_requests: int | None,
    input_len: str | None,
    output_len: str | None,
    shared_prefix: int | None,
) -> list[Workload]:
    """Return the workload that the options describe; none, if they do not.

    Raises:
        SettingsError: a range is wrong, or the number of requests is missing.
    """
    if num_requests is not None:
        bounds = (_range("input-len", input_len or "128"), _range("output-len", output_len or "64"))
        return [drawn(num_requests, *bounds, shared_prefix or 0)]
    if any(told is not None for told in (input_len, output_len, shared_prefix)):
        raise SettingsError(
            "--input-len, --output-len and --shared-prefix describe a drawn workload; give its "
            "number of requests with --num-requests"
        )
    return []


def _range(option: str, text: str) -> tuple[int, int]:
    """Return both ends of ``MIN:MAX``; a single number is both."""
    parts = text.split(":")
    try:
        low, high = int(parts[0]), int(parts[-1])
    except ValueError:
        low, high = 0, 0
    if len(parts) > 2 or not 1 <= low <= high:
        raise SettingsError(f"--{option} is MIN:MAX, two whole numbers from 1 on, not {text!r}")
    return low, high
