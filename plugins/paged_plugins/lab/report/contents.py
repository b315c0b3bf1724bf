"""The contents of a report, before it has a format."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from paged_plugins.lab.measures import MEASURES, Measure, value_text
from paged_plugins.lab.report.origin import Told, changes, notes, origin
from paged_plugins.lab.results.results import FAILED, Results
from paged_plugins.lab.statistics.comparison import DECIDED, Comparison
from paged_plugins.lab.statistics.differences import Difference
from paged_plugins.lab.study.arms import Arm
from paged_plugins.progress import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """An arm, and those that are compared with it."""

    title: str
    base: Arm
    arms: Sequence[Arm]
    """Without the base; at most ``limit`` of :func:`families`."""

    @property
    def labels(self) -> list[str]:
        """Return the labels of all of its arms, the base first."""
        return [self.base.label, *(arm.label for arm in self.arms)]


def families(results: Results, limit: int) -> list[Family]:
    """Return the families of the arms, in order; one of more than ``limit`` arms is split.

    It is split between axes where that makes parts that fit.
    """
    by_label = {arm.label: arm for arm in results.arms}
    around: dict[str, list[Arm]] = {}
    for arm in results.arms:
        if arm.compared_with != arm.label and arm.compared_with in by_label:
            around.setdefault(arm.compared_with, []).append(arm)
    made = []
    for base, arms in around.items():
        parts = _parts(arms, limit)
        for part in parts:
            axes = dict.fromkeys(arm.axis or arm.label for arm in part)
            words = ", ".join(axes) if len(parts) > 1 else ""
            against = f"against {base}" if len(around) > 1 else ""
            title = " ".join(filter(None, (words, against)))
            made.append(Family(title=title, base=by_label[base], arms=part))
    return made


def _parts(arms: Sequence[Arm], limit: int) -> list[list[Arm]]:
    """Split arms into parts of at most ``limit``, an axis in one part if it fits."""
    parts: list[list[Arm]] = [[]]
    for _, group in groupby(arms, key=lambda arm: arm.axis):
        axis = list(group)
        if len(parts[-1]) + len(axis) > limit:
            parts.append([])
        for arm in axis:
            if len(parts[-1]) == limit:
                parts.append([])
            parts[-1].append(arm)
    return [part for part in parts if part]


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


@dataclass(frozen=True, slots=True)
class Row:
    """A measure."""

    measure: Measure
    base: str
    """The mean of the arm that the others are compared with."""
    cells: Sequence[Difference | str]
    """Difference of each arm of the family; a text where there is none: that the arm
    failed, its mean where the base did, or nothing where it has no such measure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DifferenceTable:
    """All measures of a family of arms on one workload, or those that matter."""

    title: str
    family: Family
    topics: Mapping[str, Sequence[Row]]
    """Rows that belong together, by their title."""
    equal: Sequence[Row]
    """Measures that are equal in all arms and seeds; they are in no topic."""

    @property
    def equal_text(self) -> str:
        """Name these, with their values."""
        rows = "; ".join(f"{row.measure.title} {row.base}" for row in self.equal)
        return f"Equal in all arms: {rows}"


Found = Mapping[tuple[str, str, str], Difference]
"""Differences by arm, workload and measure."""


def _table(
    results: Results, found: Found, family: Family, workload: str, measures: Iterable[Measure]
) -> DifferenceTable:
    topics: dict[str, list[Row]] = {topic: [] for topic in (*_TOPICS, _OTHER)}
    equal = []
    for measure in measures:
        row = _row(results, found, family, workload, measure)
        if all(isinstance(cell, Difference) and cell.is_equal for cell in row.cells):
            equal.append(row)
        elif not {row.base, *row.cells} <= {FAILED, ""}:
            topics[_topic(measure.name)].append(row)
    return DifferenceTable(
        title=group_title(results, workload, family),
        family=family,
        topics={topic: rows for topic, rows in topics.items() if rows},
        equal=equal,
    )


def _row(results: Results, found: Found, family: Family, workload: str, measure: Measure) -> Row:
    failures, name = results.failures, measure.name
    has_failed_base = family.base.label in failures

    def cell(arm: Arm) -> Difference | str:
        difference = found.get((arm.label, workload, name))
        if difference is None and (has_failed_base or arm.label in failures):
            return mean(arm)
        return difference or ""

    def mean(arm: Arm) -> str:
        value = results.mean(arm.label, workload, name)
        return FAILED if arm.label in failures else "" if value is None else value_text(name, value)

    cells = [cell(arm) for arm in family.arms]
    known = (value_text(name, each.base) for each in cells if isinstance(each, Difference))
    base = next(known, mean(family.base) if FAILED in cells or has_failed_base else "")
    return Row(measure, base, cells)


def _topic(name: str) -> str:
    starts = ((topic, each) for topic, names in _TOPICS.items() for each in names)
    return next((topic for topic, start in starts if name.startswith(start)), _OTHER)


_MOST_COLUMNS = 6
"""Arms in one table, and in one picture."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """The parts of a report, in the order in which they are read."""

    title: str
    scope: str
    """Number of runs."""
    limits: Sequence[str]
    """Limits of the differences."""
    decided: Sequence[Difference]
    """Claimed differences, of the measures that are shown without being asked."""
    notes: Sequence[str]
    """Notes on reading the tables, and how far to trust them."""
    tables: Sequence[DifferenceTable]
    """The measures that are shown without being asked."""
    full_tables: Sequence[DifferenceTable]
    """Every measure."""
    settings: Told
    """Each arm, and the settings that it changes."""
    facts: Told
    """Where the results come from: what fits into a line each."""
    blocks: Told
    """The rest of that, as YAML."""
    families: Sequence[Family]
    found: Found


def contents(told: Comparison) -> Contents:
    """Return what a report of a comparison says."""
    results = told.results
    found = {(each.arm, each.workload, each.measure): each for each in told.differences}
    kinds, (facts, blocks) = families(results, _MOST_COLUMNS), origin(results)
    return Contents(
        title=_title(results, kinds),
        scope=_scope(results, told.differences),
        limits=told.limits,
        decided=[
            each
            for each in told.differences
            if each.verdict in DECIDED and MEASURES[each.measure].shown
        ],
        notes=list(notes(results, told.confidence, len(found))),
        tables=_tables(results, kinds, found, [each for each in MEASURES.values() if each.shown]),
        full_tables=_tables(results, kinds, found, MEASURES.values()),
        settings=[(arm.label, changes(arm)) for arm in results.arms],
        facts=facts,
        blocks=blocks,
        families=kinds,
        found=found,
    )


def _tables(
    results: Results, kinds: Sequence[Family], found: Found, measures: Iterable[Measure]
) -> list[DifferenceTable]:
    tables = (
        _table(results, found, family, workload, measures)
        for workload in results.workloads
        for family in kinds
    )
    return [table for table in tables if table.topics or table.equal]


def group_title(results: Results, workload: str, family: Family | None = None) -> str:
    """Return the title of what is about a workload, and a family; empty if there is no other."""
    parts = (workload if len(results.workloads) > 1 else "", family.title if family else "")
    return " · ".join(filter(None, parts))


def _title(results: Results, kinds: Sequence[Family]) -> str:
    axes = list(dict.fromkeys(arm.axis for family in kinds for arm in family.arms))
    where = f" on {_listed(results.workloads)}" if len(results.workloads) in {1, 2} else ""
    named = [axis for axis in axes if axis]
    if named and len(named) == len(axes) <= 3:
        return f"What does changing {_listed(named)} do{where}?"
    return f"What do {len(results.arms)} arms differ in{where}?"


def _listed(items: Sequence[str]) -> str:
    """Return ``a, b and c``."""
    return " and ".join(filter(None, (", ".join(items[:-1]), items[-1])))


def _scope(results: Results, different: Sequence[Difference]) -> str:
    parts = (
        counted(len(results.arms), "arm"),
        counted(len(results.workloads), "workload"),
        counted(len(results.seeds), "seed"),
        counted(len(results.runs), "run"),
        f"{sum(each.moved for each in different):,} of {len(different):,} differences decided",
    )
    return " · ".join(parts)
