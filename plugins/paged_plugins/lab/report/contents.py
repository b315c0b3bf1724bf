"""What a report says, before it has a format."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from paged_plugins.lab.measures import Measure
from paged_plugins.lab.report.difference_table import (
    DifferenceTable,
    Found,
    by_place,
    difference_table,
)
from paged_plugins.lab.report.families import Family, families
from paged_plugins.lab.report.origin import Origin, origin, simulation
from paged_plugins.lab.results import Results
from paged_plugins.lab.statistics.differences import differences
from paged_plugins.lab.statistics.sentences import sentences
from paged_plugins.lab.statistics.simultaneous import minimum_seeds
from paged_plugins.lab.statistics.wording import listed

_MOST_COLUMNS = 6
"""Arms in one table, and in one picture."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """The parts of a report, in the order in which they are read."""

    title: str
    scope: str
    """How much was run."""
    answers: Sequence[str]
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
    return Contents(
        title=_title(results, kinds),
        scope=_scope(results),
        answers=sentences(results, different, confidence),
        notes=_notes(results, confidence, len(different)),
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


def _scope(results: Results) -> str:
    parts = (
        _counted(len(results.arms), "arm"),
        _counted(len(results.workloads), "workload"),
        _counted(len(results.seeds), "seed"),
        _counted(len(results.runs), "run"),
    )
    return " · ".join(parts)


def _notes(results: Results, confidence: float, num_differences: int) -> list[str]:
    num_seeds, percent = len(results.seeds), f"{100 * confidence:g}%"
    missing = len(results.arms) * len(results.workloads) * num_seeds - len(results.runs)
    notes = (
        []
        if not missing
        else [
            f"{_counted(missing, 'run')} failed or were left out: a difference is of the seeds that"
            " both arms have."
        ]
    )
    notes += [
        f"Every arm served the same requests with the same {_counted(num_seeds, 'seed')}. A"
        " difference is taken within each seed, then averaged."
    ]
    if told := simulation(results):
        notes.append(told)
    if num_seeds < 2:
        notes.append("One seed bounds nothing: there are no intervals, and no claim is made.")
        return notes
    notes.append(
        f"[low, high] is the {percent} confidence interval of a difference, by a bootstrap over"
        f" seeds. It is corrected for the number of comparisons: with {percent} confidence all"
        f" {num_differences:,} intervals of this report hold at once."
    )
    enough = minimum_seeds(confidence)
    if num_seeds < enough:
        notes.append(
            f"A claim needs {enough} seeds: with {num_seeds}, nothing is said to have moved."
        )
    else:
        notes.append(
            "A measure has moved if its interval leaves out 0; then it is called better or worse,"
            " and set in bold. One that has not moved need not be equal: the interval says how"
            " large a difference may have been missed."
        )
    return notes


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
