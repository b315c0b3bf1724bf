"""Requests to measure with: token ids in, so many tokens out; the same ones every time.

A workload is made from a seed alone. Each repeat shifts all token ids by the same amount, so that
lengths stay and nothing of an earlier repeat is found in a cache.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

_NUM_IDS = 10_000
_SHIFT = 3331


@dataclass(frozen=True, slots=True)
class Item:
    """One request: its prompt, and how many tokens it generates whatever they are."""

    prompt: list[int]
    num_output: int


@dataclass(frozen=True, slots=True)
class Workload:
    """Named requests; ``make(random)`` draws them."""

    name: str
    summary: str
    make: Callable[[random.Random], list[Item]]

    def items(self, repeat: int = 0, *, vocab_size: int = _NUM_IDS) -> list[Item]:
        """Return the requests of one repeat, in the order in which they come."""
        items = self.make(random.Random(0))
        return [
            Item(
                [(token + repeat * _SHIFT) % _NUM_IDS % vocab_size for token in item.prompt],
                item.num_output,
            )
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


NAMED = {
    workload.name: workload
    for workload in (
        Workload("W1", "32 requests, 64 to 512 tokens in, 32 to 128 out", _mixed),
        Workload("W2", "16 requests, 32 tokens in, 128 out: decoding", _decode),
        Workload(
            "W3", "24 requests that share 512 tokens and have 32 of their own, 32 out", _shared
        ),
        Workload("W4", "one request, 128 tokens in, 64 out", _single),
    )
}


def drawn(
    num_requests: int,
    num_input: tuple[int, int],
    num_output: tuple[int, int],
    num_shared: int = 0,
) -> Workload:
    """Return a workload of so many requests with lengths drawn evenly from ranges, ends included.

    Args:
        num_shared: tokens that all prompts begin with, beside those of ``num_input``.
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
    return Workload("drawn", summary, make)
