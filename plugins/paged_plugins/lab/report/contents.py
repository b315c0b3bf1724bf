"""What a report says, before it has a format."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from paged_plugins.lab.measures.measure import Measure
from paged_plugins.lab.report.difference_table import (
    DifferenceTable,
    Found,
    by_place,
    difference_table,
)
from paged_plugins.lab.report.families import Family, families
from paged_plugins.lab.report.notes import notes
from paged_plugins.lab.report.origin import Origin, origin
from paged_plugins.lab.results.results import Results
from paged_plugins.lab.statistics.differences import Difference, differences
from paged_plugins.lab.statistics.sentences import answers, arm_sentences
from paged_plugins.lab.statistics.wording import listed
from paged_plugins.progress import counted

_MOST_COLUMNS = 6
"""Arms in one table, and in one picture."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """The parts of a report, in the order in which they are read."""

    title: str
    scope: str
    """How much was run."""
    answers: Sequence[str]
    """What is better for each axis; without axes, what each arm moved."""
    arms: Sequence[str]
    """What each arm moved, if the answers do not say it."""
    notes: Sequence[str]
    """How to read the tables, and how far to trust them."""
    tables: Sequence[DifferenceTable]
    """The measures that are shown without being asked."""
    full_tables: Sequence[DifferenceTable]
    """Every measure."""
    origin: Origin
    families: Sequence[Family]
    found: Found


def contents(results: Results, measures: Collection[str], confidence: float = 0.95) -> Contents:
    """Return what a report of ``results`` says.

    Args:
        measures: names of those that are compared.
    """
    different = differences(results, confidence, measures=measures)
    found = by_place(different)
    kinds = families(results, _MOST_COLUMNS)
    told = answers(results, different, confidence)
    arms = arm_sentences(results, different, confidence)
    return Contents(
        title=_title(results, kinds),
        scope=_scope(results, different),
        answers=told or arms,
        arms=arms if told else (),
        notes=list(notes(results, confidence, len(different))),
        tables=_tables(results, kinds, found, lambda measure: measure.shown),
        full_tables=_tables(results, kinds, found, lambda measure: True),
        origin=origin(results),
        families=kinds,
        found=found,
    )


def _tables(
    results: Results, kinds: Sequence[Family], found: Found, wanted: Callable[[Measure], bool]
) -> list[DifferenceTable]:
    tables = (
        difference_table(group_title(results, workload, family), found, family, workload, wanted)
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
    where = f" on {listed(results.workloads)}" if len(results.workloads) in {1, 2} else ""
    named = [axis for axis in axes if axis]
    if named and len(named) == len(axes) <= 3:
        return f"What does changing {listed(named)} do{where}?"
    return f"What do {len(results.arms)} arms differ in{where}?"


def _scope(results: Results, different: Sequence[Difference]) -> str:
    parts = (
        counted(len(results.arms), "arm"),
        counted(len(results.workloads), "workload"),
        counted(len(results.seeds), "seed"),
        counted(len(results.runs), "run"),
        f"{sum(each.moved for each in different):,} of {len(different):,} differences moved",
    )
    return " · ".join(parts)
