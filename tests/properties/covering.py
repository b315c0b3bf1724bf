"""Covering arrays: few rows in which every pair of values of any two columns occurs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import combinations, product
from typing import Any

import pytest

Pair = tuple[tuple[str, int], tuple[str, int]]
Allows = Callable[[str, Any, str, Any], bool]


def pairwise_rows(columns: Mapping[str, Sequence[Any]], allows: Allows) -> list[dict[str, Any]]:
    """Return rows that contain every allowed pair of values; deterministic.

    Greedy: each row starts from a missing pair, and takes, column by column, the value that adds
    the most pairs. That is not the smallest array, but rarely twice as large.

    Args:
        allows: whether a value of one column may be combined with a value of another.
    """
    names = sorted(columns, key=lambda name: (-len(columns[name]), name))
    forbidden = {
        pair
        for pair in _pairs(names, columns)
        if not allows(*(part for name, value in pair for part in (name, columns[name][value])))
    }
    missing = dict.fromkeys(pair for pair in _pairs(names, columns) if pair not in forbidden)
    rows = []
    while missing:
        row = dict(next(iter(missing)))
        for name in names:
            if name not in row:
                row[name] = _best(row, name, columns, names, missing, forbidden)
        for pair in combinations([(name, row[name]) for name in names], 2):
            missing.pop(pair, None)
        rows.append({name: columns[name][row[name]] for name in columns})
    return rows


def pairwise(**columns: Sequence[Any]) -> pytest.MarkDecorator:
    """Return the mark of a test that is run for every pair of values of any two parameters."""
    rows = pairwise_rows(columns, lambda *_: True)
    return pytest.mark.parametrize(tuple(columns), [tuple(row.values()) for row in rows])


def _pairs(names: Sequence[str], columns: Mapping[str, Sequence[Any]]) -> Iterator[Pair]:
    for one, other in combinations(names, 2):
        for left, right in product(range(len(columns[one])), range(len(columns[other]))):
            yield (one, left), (other, right)


def _best(
    row: Mapping[str, int],
    name: str,
    columns: Mapping[str, Sequence[Any]],
    names: Sequence[str],
    missing: Collection[Pair],
    forbidden: Collection[Pair],
) -> int:
    """The value of a column that adds the most missing pairs and no forbidden pair to the row.

    Raises:
        ValueError: every value forms a forbidden pair with the row.
    """
    gains = {}
    for value in range(len(columns[name])):
        here = (name, value)
        pairs = [
            (here, there) if names.index(name) < names.index(there[0]) else (there, here)
            for there in row.items()
        ]
        if not any(pair in forbidden for pair in pairs):
            gains[value] = sum(pair in missing for pair in pairs)
    return max(gains, key=lambda value: (gains[value], -value))
