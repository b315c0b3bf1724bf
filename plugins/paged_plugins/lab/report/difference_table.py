"""The differences of a family of arms on a workload: a row per measure, a column per arm."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Literal

from paged_plugins.lab.measures.measure import MEASURES, Measure
from paged_plugins.lab.report.families import Family
from paged_plugins.lab.statistics.differences import Difference
from paged_plugins.lab.statistics.sentences import is_better
from paged_plugins.lab.statistics.wording import change_text, interval_text, value_text

Verdict = Literal["better", "worse", "differs", ""]

_TOPICS: Mapping[str, Sequence[str]] = {
    "Throughput": (
        *("goodput_per_s", "missed_deadlines", "throughput_tokens_per_s", "requests_per_s"),
    ),
    "Latency": ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms", "queueing_ms"),
    "Cache and preemption": ("hit_rate", "evictions", "preemptions", "recomputed_tokens"),
    "Memory": ("held_share", "reserved_share", "internal_share", "external_share"),
    "Fairness": ("jain", "max_slowdown"),
}
_OTHER = "Run"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What an arm did to a measure."""

    value: str
    change: str
    interval: str
    """``[low, high]``; empty: there is one seed."""
    verdict: Verdict
    """Empty: it did not move."""
    equal: bool
    """In every seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A measure."""

    title: str
    base: str
    cells: Sequence[Cell | None]
    """One per arm of the family; ``None``: not measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """Rows that belong together."""

    title: str
    rows: Sequence[Row]


@dataclass(frozen=True, slots=True, kw_only=True)
class DifferenceTable:
    """All measures of a family of arms on one workload, or those that matter."""

    title: str
    family: Family
    topics: Sequence[Topic]
    equal: Sequence[Row]
    """Measures that are equal in all arms and seeds; they are in no topic."""


Found = Mapping[tuple[str, str, str], Difference]
"""Differences by arm, workload and measure."""


def by_place(differences: Iterable[Difference]) -> Found:
    """Return differences by arm, workload and measure."""
    return {(each.arm, each.workload, each.measure): each for each in differences}


def difference_table(
    title: str, found: Found, family: Family, workload: str, wanted: Callable[[Measure], bool]
) -> DifferenceTable:
    """Return the table of a family on a workload, with the measures that are ``wanted``."""
    topics: dict[str, list[Row]] = {topic: [] for topic in (*_TOPICS, _OTHER)}
    equal = []
    for measure in filter(wanted, MEASURES.values()):
        row = _row(found, family, workload, measure)
        if row is None:
            continue
        if all(cell is not None and cell.equal for cell in row.cells):
            equal.append(row)
        else:
            topics[_topic(measure.name)].append(row)
    return DifferenceTable(
        title=title,
        family=family,
        topics=[Topic(title=title, rows=rows) for title, rows in topics.items() if rows],
        equal=equal,
    )


def verdict(difference: Difference) -> Verdict:
    """Return which way a measure moved, if it did."""
    if not difference.moved:
        return ""
    better = is_better(difference)
    return "differs" if better is None else "better" if better else "worse"


def _topic(name: str) -> str:
    for topic, starts in _TOPICS.items():
        if name.startswith(tuple(starts)):
            return topic
    return _OTHER


def _row(found: Found, family: Family, workload: str, measure: Measure) -> Row | None:
    differences = [found.get((arm.label, workload, measure.name)) for arm in family.arms]
    base = next((each.base for each in differences if each is not None), None)
    if base is None:
        return None
    return Row(
        title=measure.title,
        base=value_text(measure.name, base),
        cells=[None if each is None else _cell(each) for each in differences],
    )


def _cell(difference: Difference) -> Cell:
    return Cell(
        value=value_text(difference.measure, difference.value),
        change=change_text(difference),
        interval=interval_text(difference) if isfinite(difference.low) else "",
        verdict=verdict(difference),
        equal=difference.low == difference.change == difference.high == 0,
    )
