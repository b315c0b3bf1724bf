"""The results of a study: what tables and reports are made of, and runs of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import fmean
from typing import Any

from pydantic import Field

from paged_plugins.decision_count import DecisionCount
from paged_plugins.lab.measures import ServiceLevel, measures
from paged_plugins.lab.runs.queueing import Saturation, Spent, together
from paged_plugins.lab.runs.run_record import RunRecord
from paged_plugins.lab.study.arms import Arm
from paged_plugins.lab.study.study import Strict, Study
from paged_plugins.lab.tasks.pool import Runner
from paged_plugins.progress import counted, errors_text

Advance = Callable[[int], None]
"""Called with the number of runs that ended."""


FAILED = "failed"
"""Text in the place of a number of an arm that failed."""


class RunFacts(Strict):
    """Facts kept of a run beside its measures."""

    failure: str | None = None
    """Message to the first request that was refused or ignored."""
    requests: int = 0
    errors: int = 0
    """Requests that ended with an error."""
    error: str | None = None
    """Message to the first of them."""
    asked: dict[str, DecisionCount] = Field(default_factory=dict)
    """Decisions by slot, of those that were watched."""
    saturation: Saturation | None = None
    """Growth of its queue, if it is known."""
    spent: Spent | None = None
    """Where the time of its requests went, if it is known."""

    @classmethod
    def of(cls, record: RunRecord) -> RunFacts:
        """Return that of a run."""
        return cls(
            failure=record.failure,
            requests=len(record.requests),
            errors=record.num_errors,
            error=record.error,
            asked=record.asked,
            saturation=Saturation.of(record),
            spent=Spent.of(record),
        )


@dataclass(frozen=True, slots=True)
class RunResult:
    """Measures of one run."""

    arm: str
    workload: str
    seed: int
    measures: Mapping[str, float]
    """By the names of :mod:`paged_plugins.lab.measures`."""
    facts: RunFacts = field(default_factory=RunFacts)

    @property
    def num_unserved(self) -> float:
        """Requests that were refused, failed, or could never run."""
        return self.measures.get("failed", 0.0) + self.measures.get("refused", 0.0)

    @property
    def num_lacking(self) -> float:
        """Requests that were not served, and those whose answers were cut short."""
        return self.num_unserved + self.measures.get("cut", 0.0)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an arm failed: of its runs nothing is concluded."""

    num_errors: int
    """Requests that ended with an error."""
    num_requests: int
    """Requests of all of its runs."""
    error: str | None
    """Message to the first of them."""
    problems: Sequence[str]
    """Why runs gave no result."""

    def __str__(self) -> str:
        told = []
        if self.num_errors:
            told.append(errors_text(self.num_errors, self.num_requests, self.error))
        if self.problems:
            runs = counted(len(self.problems), "run")
            told.append(f"{runs} gave no result, the first: {self.problems[0]}")
        return "; ".join(told)


_Place = tuple[str, str, int]
"""Arm, workload and seed of a run."""


@dataclass(frozen=True, kw_only=True)
class Results:
    """Every arm on every workload with every seed; runs of one workload and seed are paired."""

    arms: Sequence[Arm]
    """The base first."""
    workloads: Sequence[str]
    seeds: Sequence[int]
    runs: Sequence[RunResult]
    problems: Mapping[_Place, str] = field(default_factory=dict)
    """Why the runs that are missing gave no result."""
    slo: ServiceLevel = field(default_factory=ServiceLevel)
    manifest: Mapping[str, Any] = field(default_factory=dict)
    """Resolved settings, versions, seeds, machine, git revision."""
    record: Callable[[str, str, int], RunRecord | None] = lambda arm, workload, seed: None
    """The whole record of a run, for pictures; ``None``: it was not kept."""
    num_replicas: int | None = None
    """Engines behind a router, in each run; ``None``: one alone."""
    is_exact: bool = False
    """As in :class:`~paged_plugins.lab.study.study.Study`."""
    chosen: Sequence[Mapping[str, Any]] = ()
    """As in :class:`~paged_plugins.lab.study.study.Study`."""
    remedies: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """By workload and slot: which load or cache would ask a component that was not asked."""

    @cached_property
    def runs_of(self) -> Mapping[tuple[str, str], Sequence[RunResult]]:
        """The runs by arm and workload."""
        found: defaultdict[tuple[str, str], list[RunResult]] = defaultdict(list)
        for run in self.runs:
            found[run.arm, run.workload].append(run)
        return found

    @cached_property
    def failures(self) -> Mapping[str, Failure]:
        """The arms that failed, by label: requests ended with an error, or runs gave no result."""
        problems: defaultdict[str, list[str]] = defaultdict(list)
        for (label, _, _), problem in self.problems.items():
            problems[label].append(problem)
        found = {}
        for label in (arm.label for arm in self.arms):
            runs = [run for name in self.workloads for run in self.runs_of.get((label, name), ())]
            num_errors = sum(run.facts.errors for run in runs)
            if num_errors or label in problems:
                found[label] = Failure(
                    num_errors,
                    sum(run.facts.requests for run in runs),
                    next((run.facts.error for run in runs if run.facts.error), None),
                    problems[label],
                )
        return found

    @cached_property
    def saturation(self) -> Mapping[tuple[str, str], Saturation | None]:
        """Growth of the queue by arm and workload, over all seeds; ``None``: it is not known."""
        return {
            place: together([each for run in runs if (each := run.facts.saturation)])
            for place, runs in self.runs_of.items()
        }

    def is_over(self, arm: str, workload: str) -> bool:
        """Return whether an arm is given more than it can serve."""
        found = self.saturation.get((arm, workload))
        return found is not None and found.label == "over"

    def marked(self, arm: str, workload: str) -> str:
        """Return the label of an arm, marked where it is given more than it can serve."""
        return f"{arm} (over)" if self.is_over(arm, workload) else arm

    def who(self, some: Sequence[str]) -> str:
        """Name some of the arms."""
        return "all arms" if len(some) == len(self.arms) else ", ".join(some)

    @property
    def is_nothing(self) -> bool:
        """Return whether no run served a request."""
        return all(run.facts.requests <= run.num_unserved for run in self.runs)

    def values(self, arm: str, workload: str, measure: str) -> list[float]:
        """Return a measure of an arm, of each seed that has it."""
        runs = self.runs_of.get((arm, workload), ())
        return [run.measures[measure] for run in runs if measure in run.measures]

    def mean(self, arm: str, workload: str, measure: str) -> float | None:
        """Return the mean of these values; ``None``: there are none."""
        values = self.values(arm, workload, measure)
        return fmean(values) if values else None


def run_study(
    study: Study,
    runner: Runner,
    advance: Advance = lambda count: None,
    *,
    keeps_records: bool = False,
) -> Results:
    """Run a whole study, and return what was measured; a run that fails does not stop the others.

    Args:
        keeps_records: keep what pictures are drawn from.
    """
    runs: dict[_Place, RunResult] = {}
    records: dict[_Place, RunRecord] = {}
    problems: dict[_Place, str] = {}
    for ran in runner(list(study.tasks())):
        place = ran.task.place
        if ran.record is None:
            problems[place] = ran.problem or "the cause is not known"
        else:
            runs[place] = RunResult(
                *place, measures(ran.record, study.slo), RunFacts.of(ran.record)
            )
            if keeps_records:
                records[place] = ran.record
        advance(1)
    return Results(
        arms=[one.arm for one in study.arms],
        workloads=[workload.name for workload in study.workloads],
        seeds=study.seeds,
        runs=[runs[task.place] for task in study.tasks() if task.place in runs],
        problems=problems,
        slo=study.slo,
        num_replicas=study.num_replicas,
        is_exact=study.is_exact,
        chosen=study.chosen,
        record=lambda *place: records.get(place),
    )
