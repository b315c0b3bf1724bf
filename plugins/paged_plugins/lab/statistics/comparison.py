"""A comparison of the arms of a study: its differences as a table, as plain data, and what limits
them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from statistics import fmean
from typing import Any, Self

from paged_core.cli.output import echo, print_table
from paged_plugins.lab.measures import FAIRNESS, LATENCIES, MEASURES, value_text
from paged_plugins.lab.results.results import Results, RunResult
from paged_plugins.lab.statistics import asked, split
from paged_plugins.lab.statistics.differences import Difference, differences, minimum_seeds
from paged_plugins.progress import counted

_COLUMNS = ("arm", "compared with", "measure", "reference", "value", "change", "interval", "")
DECIDED = frozenset({"better", "worse", "differs"})
"""Verdicts that claim a difference."""
_MOST_NAMED = 6
"""Arms, up to which a sentence has a number for each."""
_FEW = 0.01
"""Share of the requests that one arm alone may refuse without a word beside its latencies."""


@dataclass(frozen=True)
class Comparison:
    """Results, and how far the arms differ in some measures."""

    results: Results
    differences: Sequence[Difference]
    confidence: float
    tied: Collection[tuple[str, str, str]] | None = None
    """Arm, workload and measure of differences that ties decide; ``None``: it was not tried."""

    @classmethod
    def of(
        cls, results: Results, measures: Collection[str] | None = None, confidence: float = 0.95
    ) -> Self:
        """Return the comparison in some measures; the fewer, the narrower the intervals.

        Args:
            measures: names of those to compare; ``None``: all.
        """
        found = differences(results, confidence, measures=measures)
        told = [replace(each, unserved=_unserved(each, results)) for each in found]
        return cls(results, told, confidence)

    def with_ties(self, other: Comparison) -> Self:
        """Return it with those differences marked that lie outside their intervals in ``other``,
        whose ties are broken the other way."""
        changes = {_place(each): each.change for each in other.differences}
        tied = {
            place
            for each in self.differences
            if (place := _place(each)) in changes and not each.holds(changes[place])
        }
        return replace(self, tied=tied)

    @cached_property
    def asked(self) -> Sequence[asked.Asked]:
        """Decisions of the components that arms vary, where they were watched."""
        return list(asked.asked(self.results))

    @cached_property
    def splits(self) -> Sequence[split.Split]:
        """Parts of the differences in the mean completion time."""
        return list(split.splits(self.results))

    @property
    def never_asked(self) -> list[str]:
        """Say of each component that never had a choice that it had none."""
        return list(dict.fromkeys(each.never for each in self.asked if each.never))

    @property
    def idle(self) -> list[str]:
        """Say of each arm in which nothing at all is other than in what it is compared with that
        its settings changed nothing.
        """
        results, found = self.results, []
        never = {(each.arm, each.workload) for each in self.asked if each.never}
        for arm, workload in product(results.arms, results.workloads):
            own, base = (
                {run.seed: run.measures for run in results.runs_of.get((label, workload), ())}
                for label in (arm.label, arm.compared_with)
            )
            is_told = arm.label == arm.compared_with or (arm.label, workload) in never
            if own and own == base and not is_told:
                found.append(
                    f"{workload}: {arm.label} changed nothing in these runs: every measure is that "
                    f"of {arm.compared_with}"
                )
        return found

    @cached_property
    def limits(self) -> list[str]:
        """Limits of the differences: too few seeds, arms that failed, requests that were refused,
        draws without chance.
        """
        results, enough = self.results, minimum_seeds(self.confidence)
        found = []
        if results.is_exact:
            found.append(
                "seeds draw nothing, so each arm ran once: differences are exact, and of exactly "
                "these requests"
            )
        elif len(results.seeds) < enough:
            found.append(
                f"{counted(len(results.seeds), 'seed')}: too few to decide anything with "
                f"{self.confidence:.0%} confidence; run {enough}"
            )
        found += _failed_arms(results)
        if self.tied is not None:
            found.append(
                f"ties decide {counted(len(self.tied), 'difference')}, outside the interval if "
                "requests that arrive at the same moment do so in reverse order"
            )
        for workload in results.workloads:
            runs = {
                arm: some
                for (arm, name), some in results.runs_of.items()
                if name == workload and arm not in results.failures
            }
            found += [*_refusals(workload, runs), *_without_chance(workload, runs)]
        return found

    def document(self) -> dict[str, Any]:
        """Return all of a comparison as plain data."""
        results = self.results
        return {
            "workload": results.workloads[0],
            "workloads": list(results.workloads),
            "exact": results.is_exact,
            "seeds": list(results.seeds),
            "confidence": self.confidence,
            "minimum_seeds": minimum_seeds(self.confidence),
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
            "measures": {
                name: {key: getattr(MEASURES[name], key) for key in ("title", "unit", "better")}
                for name in dict.fromkeys(each.measure for each in self.differences)
            },
            "differences": [self._described(each) for each in self.differences],
            "limits": self.limits,
            "split": [each.document() for each in self.splits],
            "asked": [each.document() for each in self.asked],
            "idle": self.idle,
            "runs": [
                {
                    "arm": run.arm,
                    "workload": run.workload,
                    "seed": run.seed,
                    "measures": dict(run.measures),
                    "requests": run.facts.requests,
                    "errors": run.facts.errors,
                    "saturation": (each := run.facts.saturation) and each.document(),
                }
                for run in results.runs
            ],
            "replicas": results.num_replicas,
            "chosen": [dict(each) for each in results.chosen],
        }

    def _described(self, each: Difference) -> dict[str, Any]:
        told = ("arm", "workload", "measure", "base", "value", "change", "unit")
        return {key: getattr(each, key) for key in told} | {
            "low": each.low if each.has_interval else None,
            "high": each.high if each.has_interval else None,
            "moved": each.moved,
            "verdict": each.verdict,
            "unserved": each.unserved and [*each.unserved],
            "ties": _place(each) in (self.tied or ()),
        }


def _unserved(each: Difference, results: Results) -> tuple[float, float] | None:
    """Return how many requests a run of the two arms did not serve in full, where a measure depends
    on them and they differ by a hundredth of the requests.
    """
    if not (each.measure.partition("_")[0] in LATENCIES or each.measure in FAIRNESS):
        return None
    runs = [results.runs_of[arm, each.workload] for arm in (each.compared_with, each.arm)]
    base, own = (fmean(run.num_lacking for run in some) for some in runs)
    most = max(run.facts.requests for some in runs for run in some)
    return (base, own) if abs(base - own) > _FEW * most else None


def _failed_arms(results: Results) -> Iterator[str]:
    compared_with = {arm.compared_with for arm in results.arms if arm.compared_with != arm.label}
    for label, failure in results.failures.items():
        others = ", nor about what is compared with it" if label in compared_with else ""
        yield f"{label} failed, so nothing is concluded about it{others}: {failure}"


def _refusals(workload: str, runs: Mapping[str, Sequence[RunResult]]) -> Iterator[str]:
    """Say that requests were refused, ignored or cut short: arms in which the same ones are differ
    in nothing else.
    """
    if many := _counted(runs, lambda run: run.num_unserved - run.facts.errors):
        told = (told for some in runs.values() for run in some if (told := run.facts.failure))
        first = next(told, None)
        yield f"{workload}: refused or ignored: {many}" + (f"; the first: {first}" if first else "")
    if many := _counted(runs, lambda run: run.num_lacking - run.num_unserved):
        yield f"{workload}: cut short by the model's length or the cache, so less to do: {many}"


def _counted(
    runs: Mapping[str, Sequence[RunResult]], count: Callable[[RunResult], float]
) -> str | None:
    """Say how many requests of a run are of a kind, by arm; ``None``: none is."""
    counts = {arm: fmean(map(count, some)) for arm, some in runs.items()}
    if not any(counts.values()):
        return None
    told = {arm: value_text("refused", each) for arm, each in counts.items()}
    if len({*told.values()}) == 1:
        return f"{next(iter(told.values()))} requests a run in all arms"
    if len(told) > _MOST_NAMED:
        some = [each for each in counts.values() if each]
        least, most = (value_text("refused", each) for each in (min(some), max(some)))
        return f"{least} to {most} requests a run in {len(some)} of {len(told)} arms"
    return "requests a run, " + ", ".join(f"{arm} {each}" for arm, each in told.items())


def _without_chance(workload: str, runs: Mapping[str, Sequence[RunResult]]) -> Iterator[str]:
    """Say that seeds change nothing, such as of a trace: then no interval bounds chance."""
    if any(len(some) > 1 for some in runs.values()) and all(
        each.measures == some[0].measures for some in runs.values() for each in some
    ):
        yield (
            f"{workload}: all seeds gave the same result, so what moved is true of exactly these "
            "requests, and no interval says how far it holds for others"
        )


def print_differences(
    found: Comparison, heading: str = "", *, is_shown: Collection[str] | None = None
) -> None:
    """Print the differences on each workload as a table, and what limits them.

    Measures that are equal in all arms are named below it.

    Args:
        heading: what the differences are of.
        is_shown: the verdicts of those to print; ``None``: all.
    """
    if heading:
        echo(heading)
    for told in (*found.never_asked, *found.idle):
        echo(told)
    if told_rows := [each.row for each in found.asked if each.row]:
        print_table("", asked.COLUMNS, told_rows)
        echo("")
    for told in saturation_sentences(found.results):
        echo(told)
    for workload in found.results.workloads:
        own = [each for each in found.differences if each.workload == workload]
        differing = {each.measure for each in own if not each.is_equal}
        rows = [
            _row(each, found)
            for each in own
            if each.measure in differing and (is_shown is None or each.verdict in is_shown)
        ]
        several = len(found.results.workloads) > 1
        if rows:
            print_table(f"\n{workload}" if several else "", _COLUMNS, rows)
        equal = [title for name, title in _titles(own).items() if name not in differing]
        if equal:
            others = " that did not fail" if found.results.failures else ""
            of = f"{workload}: " if several else ""
            echo(f"{of}equal in all arms{others}: {', '.join(equal)}")
    if found.splits:
        title = "\nWhere it comes from, a request"
        print_table(title, split.COLUMNS, [each.row for each in found.splits])
    for told in (*split.left_out(found.splits), *split.sentences(found.splits)):
        echo(told)
    if len(found.results.arms) == 1:
        echo("there is one arm, so nothing is compared")
    elif not found.differences and not found.results.failures:
        echo("no measure that was asked for has a value in two arms")
    for limit in found.limits:
        echo(limit)


def _titles(some: Sequence[Difference]) -> dict[str, str]:
    return {each.measure: MEASURES[each.measure].title for each in some}


def saturation_sentences(results: Results) -> Iterator[str]:
    """Say of each arm that is near or over what can be served that it is, arms alike together."""
    for workload, label in product(results.workloads, ("near", "over")):
        found = {
            arm.label: each
            for arm in results.arms
            if (each := results.saturation.get((arm.label, workload))) and each.label == label
        }
        if found:
            far = ", so that latencies depend on the length of the run" if label == "over" else ""
            first = next(iter(found.values()))
            yield f"{workload}: {results.who(list(found))}: {first}{far}"


def _place(each: Difference) -> tuple[str, str, str]:
    return each.arm, each.workload, each.measure


def _row(each: Difference, found: Comparison) -> list[str]:
    return [
        *(found.results.marked(arm, each.workload) for arm in (each.arm, each.compared_with)),
        MEASURES[each.measure].title,
        value_text(each.measure, each.base),
        value_text(each.measure, each.value),
        each.change_text,
        each.interval_text if each.has_interval and not each.is_equal else "",
        f"{each.told}, by ties" if _place(each) in (found.tied or ()) else each.told,
    ]
