"""The contents of a report, before it has a format."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import yaml

from paged_core.cli.output import show
from paged_plugins.lab.load.fractions import choice_sentences
from paged_plugins.lab.measures import LATENCIES, MEASURES, Measure, value_text
from paged_plugins.lab.results.results import FAILED, Results
from paged_plugins.lab.settings import SIMULATED
from paged_plugins.lab.statistics import split
from paged_plugins.lab.statistics.comparison import DECIDED, Comparison, saturation_sentences
from paged_plugins.lab.statistics.differences import Difference, minimum_seeds
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
        limits=[
            *told.never_asked,
            *told.idle,
            *saturation_sentences(results),
            *split.sentences(told.splits),
            *told.limits,
        ],
        decided=[
            each
            for each in told.differences
            if each.verdict in DECIDED and MEASURES[each.measure].shown
        ],
        notes=[
            *notes(results, told.confidence, len(found)),
            *(each.told for each in told.asked if each.row),
        ],
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
    """Return the title of what is about a workload, and a family: which it is, if there is another,
    and which arms are given more of it than they can serve.
    """
    over = [arm.label for arm in results.arms if results.is_over(arm.label, workload)]
    parts = (
        workload if len(results.workloads) > 1 else "",
        family.title if family else "",
        f"over what can be served: {results.who(over)}" if over else "",
    )
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


_LEFT_OUT = frozenset(
    {"format", "is_exact", "arms", "runs", "seeds", "slo", "chosen", "started", "finished"}
)
"""Keys of a manifest that are told elsewhere, or differ between runs with equal results."""
_LONGEST = 300
"""Characters of a fact that is shown in a line; longer ones are shown as blocks."""


Told = Sequence[tuple[str, str]]


def origin(results: Results) -> tuple[Told, Told]:
    """Return where ``results`` come from, as far as they tell: what fits into a line each, and the
    rest, as YAML.
    """
    limits = [
        f"{LATENCIES[kind]} at most {limit:g} ms" for kind, limit in results.slo.limits.items()
    ]
    facts = {
        "workloads": ", ".join(results.workloads),
        "seeds": ", ".join(map(str, results.seeds)),
        "service level": ", ".join(limits) or "none, so there is no goodput",
    }
    blocks = {}
    first = results.arms[0].label
    manifest = json.loads(json.dumps(results.manifest, default=str))
    for key, value in sorted(manifest.items(), key=lambda item: item[0] == "settings"):
        if key in _LEFT_OUT:
            continue
        if key == "settings" and isinstance(value, Mapping):
            key, value = f"settings of {first}", value.get(first)
        if _is_flat(value):
            facts[key] = ", ".join(f"{name} {show(inner)}" for name, inner in value.items())
        elif isinstance(value, Mapping | list):
            if value:
                blocks[key] = yaml.safe_dump(
                    value, sort_keys=False, allow_unicode=True, width=88, default_flow_style=None
                ).rstrip()
        elif value is not None:
            facts[key] = show(value)
    long = {key: fact for key, fact in facts.items() if len(fact) > _LONGEST}
    return [item for item in facts.items() if item[0] not in long], [*(long | blocks).items()]


def _is_flat(value: object) -> bool:
    return isinstance(value, Mapping) and not any(
        isinstance(inner, Mapping | list) for inner in value.values()
    )


def changes(arm: Arm) -> str:
    """Return the settings that an arm changes, one a line; of the base, those of the others."""
    told = arm.changes or arm.values
    return "\n".join(f"{key}: {show(value)}" for key, value in told.items())


def notes(results: Results, confidence: float, num_differences: int) -> Iterator[str]:
    """Yield what a reader must know of the runs, the intervals and the claims."""
    num_seeds = len(results.seeds)
    sound = [arm.label for arm in results.arms if arm.label not in results.failures]
    num_runs = sum(len(runs) for (arm, _), runs in results.runs_of.items() if arm in sound)
    missing = len(sound) * len(results.workloads) * num_seeds - num_runs
    if missing:
        yield (
            f"{counted(missing, 'run')} failed or were left out: a difference is of the seeds that "
            "both arms have."
        )
    yield (
        f"Every arm served the same requests with the same {counted(num_seeds, 'seed')}. A "
        "difference is taken within each seed, then averaged."
    )
    yield from choice_sentences(results.chosen, results.arms[0].title)
    settings = results.manifest.get("settings", {}).get(results.arms[0].label, {})
    if settings.get("executor", {}).get("name") == SIMULATED:
        model = settings.get("cost_model") or {}
        options = [f"{key} {show(value)}" for key, value in model.items() if key != "name"]
        yield (
            "Times are those of a simulation: a step takes what cost model "
            f"{model.get('name')} ({', '.join(options)}) predicts. Intervals are of the draw of "
            "requests, not of the prediction."
        )
    if results.is_exact:
        yield "Seeds draw nothing, so each arm ran once: differences are exact, of these requests."
        return
    if num_seeds < 2:
        yield "One seed bounds nothing: there are no intervals, and all is undecided."
        return
    yield (
        f"[low, high] is the {100 * confidence:g}% confidence interval of a difference, by a "
        "bootstrap over seeds. It is corrected for the number of comparisons: with "
        f"{100 * confidence:g}% confidence all {num_differences:,} intervals of this report hold "
        "at once."
    )
    enough = minimum_seeds(confidence)
    if num_seeds < enough:
        yield f"A decision needs {enough} seeds: with {num_seeds}, all is undecided."
        return
    yield (
        "A difference is decided if its interval leaves out 0; then it is called better or worse, "
        "and set in bold. One that is undecided need not be none: the interval says how large a "
        "difference may have been missed."
    )
