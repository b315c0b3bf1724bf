"""Batches of requests: prompts of token ids with fixed output lengths, at once.

A workload is drawn with a fixed seed. Each repeat shifts all token ids by the same amount, so that
the lengths stay and no repeat hits the cached prefixes of an earlier one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from paged_plugins.workloads.request import WorkloadRequest, linked

NUM_IDS = 10_000
"""Token ids are below it."""
_SHIFT = 3331
_CONVERSATIONS, _TURNS = 8, 4

Draw = tuple[list[int], int, int | None]
"""A prompt, the number of tokens to generate, and the place of the request that it follows."""


@dataclass(frozen=True, slots=True)
class BatchWorkload:
    """Requests that arrive at once; ``make(random)`` draws them."""

    name: str
    make: Callable[[random.Random], Sequence[Draw]]

    def draw(self, seed: int, /) -> Iterator[WorkloadRequest]:
        """Yield the requests of a repeat, of which one seed each has."""
        return iter(self.requests(seed))

    def requests(self, repeat: int = 0, *, vocab_size: int = NUM_IDS) -> list[WorkloadRequest]:
        """Return the requests of one repeat that follow no other, in arrival order. The ids in
        their prompts are token ids."""
        shift = repeat * _SHIFT
        found = []
        for place, (prompt, output, follows) in enumerate(self.make(random.Random(0))):
            ids = tuple((token + shift) % NUM_IDS % vocab_size for token in prompt)
            request = WorkloadRequest(id=str(place), prompt=(ids,), output=output)
            found.append((request, None if follows is None else str(follows)))
        return linked(found)


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
    """Return whether the roofline is known of them: nothing waits but later turns of chains."""
    return all(
        not request.at and request.n == 1 and len(request.followers) <= 1
        for first in firsts
        for request in first.family()
    )


def _ids(chance: random.Random, count: int) -> list[int]:
    return [chance.randrange(NUM_IDS) for _ in range(count)]


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


NAMED: dict[str, BatchWorkload] = {
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
