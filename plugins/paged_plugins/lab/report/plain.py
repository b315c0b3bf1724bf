"""The conclusions of a comparison as text that fits a terminal, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from paged_plugins.lab.measures import MEASURES, SHOWN
from paged_plugins.lab.results.results import FAILED, Results
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
            {
                "arm": arm.label,
                "changes": dict(arm.changes),
                "compared_with": arm.compared_with,
                "failed": str(results.failures[arm.label])
                if arm.label in results.failures
                else None,
            }
            for arm in results.arms
        ],
        "measures": {each.measure: _described(each.measure) for each in found.differences},
        "differences": [_difference(each) for each in found.differences],
        "sentences": found.sentences,
        "runs": [
            {
                "arm": run.arm,
                "seed": run.seed,
                "measures": dict(run.measures),
                "requests": run.num_requests,
                "errors": run.num_errors,
            }
            for run in results.runs
        ],
        "replicas": results.num_replicas,
        "chosen": [dict(each) for each in results.chosen],
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
        "low": each.low if each.has_interval else None,
        "high": each.high if each.has_interval else None,
        "moved": each.moved,
    }


_GAP = " "
_CLAIMED, _NOT_CLAIMED = " *", "  "
"""Ends of a cell."""
_Line = tuple[str, Mapping[str, str]]
"""What a line begins with, and its cells by measure; without cells it is a heading."""


def table_lines(results: Results, differences: Sequence[Difference], width: int) -> Iterator[str]:
    """Yield the lines of the table of a comparison on one workload: for each arm that others are
    compared with, its values, and below them the changes of the others and their intervals. Of an
    arm that failed it says so; what is compared with it has its values instead of changes.

    Columns that do not fit into ``width`` follow in a second table below.
    """
    named = {each.measure for each in differences}
    shown = [name for name in MEASURES if name in (named or SHOWN)]
    lines = list(_lines(results, differences, shown))
    moving = {each.measure for each in differences if not each.is_equal}
    if not named:
        moving = {name for _, cells in lines for name in cells}
    widths = {
        name: max(
            len(text) for text in (_title(name), *(cells.get(name, "") for _, cells in lines))
        )
        for name in shown
        if name in moving
    }
    first = max(len(label) for label, cells in lines if cells) if moving else 0
    if not moving:  # there is no table
        yield from (label for label, _ in lines if label.endswith(f"  {FAILED}"))
    for number, names in enumerate(_fitting(widths, width - first)):
        if number:
            yield ""
        titles = {name: _title(name) for name in names}
        for label, cells in (("", titles), *lines):
            if not cells:
                yield label
            elif label or not titles.keys().isdisjoint(cells):
                padded = (cells.get(name, "").rjust(widths[name]) for name in names)
                yield _GAP.join((label.ljust(first), *padded)).rstrip()
    if equal := [MEASURES[name].title for name in shown if name in named - moving]:
        if moving:
            yield ""
        told = Phrase.EQUAL_IN_OTHERS if results.failures else Phrase.EQUAL_IN_ALL
        yield told.format(measures=", ".join(equal))
    if not named and not results.failures:
        yield Phrase.NOTHING_TO_COMPARE


def _lines(
    results: Results, differences: Sequence[Difference], shown: Sequence[str]
) -> Iterator[_Line]:
    """Yield a heading, the arm that others are compared with and these, for each such arm."""
    axes = {arm.axis for arm in results.arms if arm.axis}

    def values(arm: Arm) -> _Line:
        if arm.label in results.failures:
            return f"{_name(arm)}  {FAILED}", {}
        means = {name: results.mean(arm.label, results.workloads[0], name) for name in shown}
        return _name(arm), {
            name: value_text(name, mean) + _NOT_CLAIMED
            for name, mean in means.items()
            if mean is not None
        }

    for reference in results.arms:
        own = [each for each in differences if each.compared_with == reference.label]
        compared = [
            arm
            for arm in results.arms
            if arm is not reference and arm.compared_with == reference.label
        ]
        family = [reference, *compared] if compared else []
        if not own and not any(arm.label in results.failures for arm in family):
            continue
        if around := {key: value for key, value in reference.changes.items() if key not in axes}:
            yield settings_text(around), {}
        base = {each.measure: value_text(each.measure, each.base) for each in own}
        if own:
            yield _name(reference), {name: text + _NOT_CLAIMED for name, text in base.items()}
        else:
            yield values(reference)
        for arm in compared:
            found = [each for each in own if each.arm == arm.label]
            if not found:
                yield values(arm)
            else:
                yield (
                    _name(arm),
                    {
                        each.measure: change_text(each) + (_CLAIMED if each.moved else _NOT_CLAIMED)
                        for each in found
                    },
                )
            if unequal := [each for each in found if not each.is_equal]:
                yield "", {each.measure: interval_text(each) + _NOT_CLAIMED for each in unequal}


def _name(arm: Arm) -> str:
    if arm.axis is None or arm.axis not in arm.changes:
        return arm.label
    return setting_text(arm.changes[arm.axis])


def _title(name: str) -> str:
    return MEASURES[name].title + _NOT_CLAIMED


def _fitting(widths: Mapping[str, int], room: int) -> Iterator[list[str]]:
    """Yield the measures of one table after another."""
    some: list[str] = []
    for name, width in widths.items():
        used = sum(len(_GAP) + widths[each] for each in some)
        if some and used + len(_GAP) + width > room:
            yield some
            some = []
        some.append(name)
    if some:
        yield some
