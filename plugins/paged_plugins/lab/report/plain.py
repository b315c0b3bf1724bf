"""The conclusions of a comparison as text that fits a terminal, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from paged_plugins.lab.measures import MEASURES
from paged_plugins.lab.results.results import Results
from paged_plugins.lab.statistics.differences import Difference, minimum_seeds
from paged_plugins.lab.statistics.phrases import (
    Phrase,
    change_text,
    change_unit,
    interval_text,
    value_text,
)
from paged_plugins.lab.statistics.sentences import Conclusions
from paged_plugins.lab.study.arms import Arm, setting_text, settings_text


def document(found: Conclusions) -> dict[str, Any]:
    """Return all conclusions of a comparison as plain data."""
    results = found.results
    return {
        "workload": results.workloads[0],
        "seeds": list(results.seeds),
        "confidence": found.confidence,
        "minimum_seeds": minimum_seeds(found.confidence),
        "arms": [
            {"arm": arm.label, "changes": dict(arm.changes), "compared_with": arm.compared_with}
            for arm in results.arms
        ],
        "measures": {each.measure: _described(each.measure) for each in found.differences},
        "differences": [_difference(each) for each in found.differences],
        "sentences": found.sentences,
        "runs": [
            {"arm": run.arm, "seed": run.seed, "measures": dict(run.measures)}
            for run in results.runs
        ],
    }


def _described(name: str) -> dict[str, Any]:
    measure = MEASURES[name]
    return {"title": measure.title, "unit": measure.unit, "better": measure.better}


def _difference(each: Difference) -> dict[str, Any]:
    return {
        "arm": each.arm,
        "measure": each.measure,
        "base": each.base,
        "value": each.value,
        "change": each.change,
        "unit": change_unit(each).strip(),
        "low": each.low if isfinite(each.low) else None,
        "high": each.high if isfinite(each.high) else None,
        "moved": each.moved,
    }


_GAP = " "
_CLAIMED, _NOT_CLAIMED = " *", "  "
"""Ends of a cell."""


@dataclass(frozen=True, slots=True)
class _Row:
    """An arm: two lines of cells under a line for each measure."""

    label: str
    cells: dict[str, tuple[str, str]]


def table_lines(results: Results, differences: Sequence[Difference], width: int) -> Iterator[str]:
    """Yield the lines of the table of a comparison on one workload: for each arm that others are
    compared with, its values, and below them the changes of the others and their intervals.

    Columns that do not fit into ``width`` follow in a second table below.
    """
    shown = [name for name in MEASURES if any(each.measure == name for each in differences)]
    moving = [
        name
        for name in shown
        if not all(each.is_equal for each in differences if each.measure == name)
    ]
    sections = list(_sections(results, differences))
    rows = [row for _, some in sections for row in some]
    for number, names in enumerate(_fitting(rows, moving, width) if moving else ()):
        if number:
            yield ""
        yield from _lines(sections, names)
    if equal := [MEASURES[name].title for name in shown if name not in moving]:
        if moving:
            yield ""
        yield Phrase.EQUAL_IN_ALL.format(measures=", ".join(equal))


def _sections(
    results: Results, differences: Sequence[Difference]
) -> Iterator[tuple[str, list[_Row]]]:
    """Yield a heading, and the arm that others are compared with and these, for each such arm."""
    axes = {arm.axis for arm in results.arms if arm.axis}
    for reference in results.arms:
        own = [each for each in differences if each.compared_with == reference.label]
        if not own:
            continue
        around = {key: value for key, value in reference.changes.items() if key not in axes}
        base = {each.measure: value_text(each.measure, each.base) + _NOT_CLAIMED for each in own}
        rows = [_Row(_name(reference), {name: (value, "") for name, value in base.items()})]
        for arm in results.arms:
            cells = {
                each.measure: (
                    change_text(each) + (_CLAIMED if each.moved else _NOT_CLAIMED),
                    "" if each.is_equal else interval_text(each) + _NOT_CLAIMED,
                )
                for each in own
                if each.arm == arm.label
            }
            if cells:
                rows.append(_Row(_name(arm), cells))
        yield settings_text(around), rows


def _name(arm: Arm) -> str:
    if arm.axis is None or arm.axis not in arm.changes:
        return arm.label
    return setting_text(arm.changes[arm.axis])


def _fitting(rows: Sequence[_Row], names: Sequence[str], width: int) -> Iterator[list[str]]:
    """Yield the measures of one table after another."""
    room = width - max(len(row.label) for row in rows)
    some: list[str] = []
    used = 0
    for name in names:
        needed = len(_GAP) + _width(rows, name)
        if some and used + needed > room:
            yield some
            some, used = [], 0
        some.append(name)
        used += needed
    yield some


def _width(rows: Sequence[_Row], name: str) -> int:
    texts = [text for row in rows for text in row.cells.get(name, ())]
    return max(map(len, (_title(name), *texts)))


def _title(name: str) -> str:
    return MEASURES[name].title + _NOT_CLAIMED


def _lines(sections: Sequence[tuple[str, list[_Row]]], names: Sequence[str]) -> Iterator[str]:
    rows = [row for _, some in sections for row in some]
    first = max(len(row.label) for row in rows)
    widths = [_width(rows, name) for name in names]

    def line(label: str, cells: Sequence[str]) -> str:
        padded = (cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
        return _GAP.join((label.ljust(first), *padded)).rstrip()

    yield line("", [_title(name) for name in names])
    for heading, some in sections:
        if heading:
            yield heading
        for row in some:
            values, intervals = zip(*(row.cells.get(name, ("", "")) for name in names), strict=True)
            yield line(row.label, values)
            if any(intervals):
                yield line("", intervals)
