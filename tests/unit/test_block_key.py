"""Keys of blocks: equal only if all tokens up to them are, and cheap to compare."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from paged_core.ids import BlockKey, extend_keys


def chain(tokens: list[int], block_size: int = 2, extra: Any = None) -> list[BlockKey]:
    keys: list[BlockKey] = []
    extend_keys(keys, tokens, block_size, extra, len(tokens) // block_size)
    return keys


class Packed(bytes):
    """The tokens of a key, which count how often they are compared."""

    comparisons = 0

    def __ne__(self, other: object) -> bool:
        Packed.comparisons += 1
        return bytes.__ne__(self, other)


def counted_chain(length: int) -> list[BlockKey]:
    keys = chain([token for index in range(length) for token in (index, index + 1)])
    for key in keys:
        key._packed = Packed(key._packed)
    return keys


@pytest.fixture
def comparisons() -> Iterator[type[Packed]]:
    Packed.comparisons = 0
    yield Packed
    Packed.comparisons = 0


def test_equal_tokens_give_equal_keys() -> None:
    assert chain([1, 2, 3, 4]) == chain([1, 2, 3, 4])
    assert [hash(key) for key in chain([1, 2, 3])] == [hash(key) for key in chain([1, 2, 9])]


@pytest.mark.parametrize("other", [[1, 2, 3, 5], [9, 2, 3, 4], [3, 4], [1, 2]], ids=str)
def test_a_key_stands_for_everything_before_it_too(other: list[int]) -> None:
    assert chain([1, 2, 3, 4])[-1] != chain(other)[-1]


def test_extra_keys_set_equal_tokens_apart() -> None:
    assert chain([1, 2], extra="a") == chain([1, 2], extra="a")
    assert chain([1, 2], extra="a") != chain([1, 2], extra="b")
    assert chain([1, 2], extra="a") != chain([1, 2])
    assert chain([1, 2, 3, 4], extra="a")[1] != chain([1, 2, 3, 4])[1]


def test_chains_grow_where_they_ended() -> None:
    keys = chain([1, 2, 3, 4])
    first = list(keys)
    extend_keys(keys, [1, 2, 3, 4, 5, 6, 7], 2, None, 3)
    assert keys == chain([1, 2, 3, 4, 5, 6])
    assert keys[:2] == first
    assert all(ours is theirs for ours, theirs in zip(keys, first, strict=False))
    assert [key.num_tokens for key in keys] == [2, 4, 6]


@pytest.mark.parametrize("length", [1, 2, 5])
def test_hashes_that_collide_are_never_trusted(length: int) -> None:
    """Every key gets the same hash; only tokens, parents and extra keys tell them apart."""
    tokens = list(range(2 * length))
    for position in range(2 * length):
        other = list(tokens)
        other[position] += 100
        ours, theirs = chain(tokens), chain(other)
        for key in (*ours, *theirs):
            key._hash = 7
        assert ours[-1] != theirs[-1]
        assert {ours[-1]: "ours"}.get(theirs[-1]) is None
        same = chain(tokens)
        for key in same:
            key._hash = 7
        assert {ours[-1]: "ours"}.get(same[-1]) == "ours"
    salted = chain(tokens, extra="salt")
    plain = chain(tokens)
    for key in (*salted, *plain):
        key._hash = 7
    assert salted[-1] != plain[-1]


def test_comparing_two_chains_costs_as_much_as_they_are_long(comparisons: type[Packed]) -> None:
    ours = counted_chain(1000)
    theirs = counted_chain(1000)
    for one, other in zip(ours, theirs, strict=True):
        assert one == other
    assert comparisons.comparisons <= 2 * 1000
    comparisons.comparisons = 0
    for one, other in zip(ours, theirs, strict=True):
        assert one == other
    assert comparisons.comparisons <= 1000, "nothing that precedes a block is looked at again"


def test_two_long_chains_are_compared_without_recursion(comparisons: type[Packed]) -> None:
    assert counted_chain(20_000)[-1] == counted_chain(20_000)[-1]
    assert comparisons.comparisons == 20_000
