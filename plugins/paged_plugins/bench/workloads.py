"""The requests of the benchmarks: prompts of token ids with fixed output lengths.

A workload is drawn with a fixed seed. Each repeat shifts all token ids by the same amount, so that
the lengths stay and no repeat hits the cached prefixes of an earlier one. The workloads of the lab
become items in :mod:`paged_plugins.bench.lab_workload`.

An item that follows another one is a later turn of the same conversation: its prompt continues the
tokens of the previous turn. :mod:`paged_plugins.bench.turns` builds the full prompts.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

_NUM_IDS = 10_000
_SHIFT = 3331
_CONVERSATIONS, _TURNS = 8, 4


@dataclass(frozen=True, slots=True)
class Item:
    """One request: its prompt, and the number of tokens that it generates."""

    prompt: list[int]
    """Token ids; of a later turn, only the new ones."""
    num_output: int
    follows: int | None = None
    """Index of an earlier item of the workload; the full prompt of this one is that item's full
    prompt, the tokens generated for its first sequence, and ``prompt``."""
    at: float = 0.0
    """Seconds from the start to its arrival; of one that follows another, from the end of that."""
    n: int = 1
    """Sequences that are sampled for it."""
    deadline: float | None = None
    """Seconds from its arrival."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Further ones of its :class:`~paged_core.request.Request`, such as ``priority``."""


class Workload(Protocol):
    """Named requests."""

    @property
    def name(self) -> str:
        """What tables call it."""

    @property
    def summary(self) -> str:
        """What it is, in a line."""

    def items(self, repeat: int = 0, *, vocab_size: int = _NUM_IDS) -> Sequence[Item]:
        """Return the requests of one repeat, in arrival order."""


@dataclass(frozen=True, slots=True)
class BatchWorkload:
    """Requests that arrive at once; ``make(random)`` draws them."""

    name: str
    summary: str
    make: Callable[[random.Random], list[Item]]

    def items(self, repeat: int = 0, *, vocab_size: int = _NUM_IDS) -> list[Item]:
        """As in :class:`Workload`."""
        items = self.make(random.Random(0))
        shift = repeat * _SHIFT
        return [
            replace(item, prompt=[(token + shift) % _NUM_IDS % vocab_size for token in item.prompt])
            for item in items
        ]


def _ids(chance: random.Random, count: int) -> list[int]:
    return [chance.randrange(_NUM_IDS) for _ in range(count)]


def _mixed(chance: random.Random) -> list[Item]:
    items = []
    for _ in range(32):
        num_input, num_output = chance.randint(64, 512), chance.randint(32, 128)
        items.append(Item(_ids(chance, num_input), num_output))
    return items


def _decode(chance: random.Random) -> list[Item]:
    return [Item(_ids(chance, 32), 128) for _ in range(16)]


def _shared(chance: random.Random) -> list[Item]:
    prefix = _ids(chance, 512)
    return [Item(prefix + _ids(chance, 32), 32) for _ in range(24)]


def _single(chance: random.Random) -> list[Item]:
    return [Item(_ids(chance, 128), 64)]


def _long(chance: random.Random) -> list[Item]:
    return [Item(_ids(chance, chance.randint(900, 1500)), 16) for _ in range(10)]


def _many(chance: random.Random) -> list[Item]:
    return [Item(_ids(chance, chance.randint(8, 40)), chance.randint(150, 300)) for _ in range(40)]


def _conversations(chance: random.Random) -> list[Item]:
    """Draw all first turns, then all second turns, and so on."""
    items: list[Item] = []
    for turn in range(_TURNS):
        for _ in range(_CONVERSATIONS):
            num_input = chance.randint(20, 80) if turn else chance.randint(150, 400)
            follows = len(items) - _CONVERSATIONS if turn else None
            items.append(Item(_ids(chance, num_input), chance.randint(48, 96), follows))
    return items


def _streams(chance: random.Random) -> list[Item]:
    return [Item(_ids(chance, 200), 120) for _ in range(4)]


NAMED: dict[str, Workload] = {
    workload.name: workload
    for workload in (
        BatchWorkload("W1", "32 requests, 64 to 512 tokens in, 32 to 128 out", _mixed),
        BatchWorkload("W2", "16 requests, 32 tokens in, 128 out: mostly decode", _decode),
        BatchWorkload(
            "W3", "24 requests that share 512 tokens and have 32 of their own, 32 out", _shared
        ),
        BatchWorkload("W4", "one request, 128 tokens in, 64 out", _single),
        BatchWorkload("W5", "10 requests, 900 to 1500 tokens in, 16 out: long prompts", _long),
        BatchWorkload("W6", "40 requests, 8 to 40 tokens in, 150 to 300 out", _many),
        BatchWorkload(
            "W7",
            f"{_CONVERSATIONS} conversations of {_TURNS} turns, 150 to 400 tokens in at first and "
            "20 to 80 more with each turn, 48 to 96 out",
            _conversations,
        ),
        BatchWorkload("W8", "four requests, 200 tokens in, 120 out", _streams),
    )
}


def drawn(
    num_requests: int,
    num_input: tuple[int, int],
    num_output: tuple[int, int],
    num_shared: int = 0,
) -> BatchWorkload:
    """Return a workload with lengths drawn uniformly from ranges, both ends included.

    Args:
        num_shared: length of a prefix that all prompts share, in addition to ``num_input``.
    """

    def make(chance: random.Random) -> list[Item]:
        prefix = _ids(chance, num_shared)
        items = []
        for _ in range(num_requests):
            length, count = chance.randint(*num_input), chance.randint(*num_output)
            items.append(Item(prefix + _ids(chance, length), count))
        return items

    def told(bounds: tuple[int, int]) -> str:
        return str(bounds[0]) if bounds[0] == bounds[1] else f"{bounds[0]} to {bounds[1]}"

    summary = f"{num_requests} requests, {told(num_input)} tokens in, {told(num_output)} out"
    if num_shared:
        summary += f", after {num_shared} that all share"
    return BatchWorkload("drawn", summary, make)
