"""The results of a study: what tables, sentences and reports are made of, and runs of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from paged_core.errors import EngineError
from paged_plugins.lab.measures import ServiceLevel, measures
from paged_plugins.lab.runs.run_record import RunRecord
from paged_plugins.lab.study.arms import Arm
from paged_plugins.lab.study.study import Study
from paged_plugins.lab.tasks.pool import Runner
from paged_plugins.lab.tasks.task import Ran, Task

Advance = Callable[[int], None]
"""Called with the number of runs that ended."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """What one run measured."""

    arm: str
    workload: str
    seed: int
    measures: Mapping[str, float]
    """By the names of :mod:`paged_plugins.lab.measures`."""
    failure: str | None = None
    """What the first request was told that failed; ``None``: none did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """Every arm on every workload with every seed; runs of one workload and seed are paired."""

    arms: Sequence[Arm]
    """The base first."""
    workloads: Sequence[str]
    seeds: Sequence[int]
    runs: Sequence[RunResult]
    slo: ServiceLevel = field(default_factory=ServiceLevel)
    manifest: Mapping[str, Any] = field(default_factory=dict)
    """Resolved settings, versions, seeds, machine, git revision."""
    record: Callable[[str, str, int], RunRecord | None] = lambda arm, workload, seed: None
    """The whole record of a run, for pictures; ``None``: it was not kept."""
    num_replicas: int | None = None
    """Engines behind a router, in each run; ``None``: one alone."""
    chosen: Sequence[Mapping[str, Any]] = ()
    """As in :class:`~paged_plugins.lab.study.study.Study`."""

    def with_named_base(self) -> Results:
        """Return them with the base called by its settings, for a reader."""
        name = self.arms[0].title
        labels = {arm.label: arm.label for arm in self.arms} | {self.arms[0].label: name}
        settings = self.manifest.get("settings", {})
        renamed = {labels.get(label, label): values for label, values in settings.items()}
        known = {new: old for old, new in labels.items()}
        return replace(
            self,
            arms=[
                replace(
                    arm,
                    label=labels[arm.label],
                    compared_with=labels.get(arm.compared_with, arm.compared_with),
                )
                for arm in self.arms
            ],
            runs=[replace(run, arm=labels[run.arm]) for run in self.runs],
            manifest={**self.manifest, **({"settings": renamed} if settings else {})},
            record=lambda arm, workload, seed: self.record(known[arm], workload, seed),
        )


class Kept(Protocol):
    """Where the runs of studies are kept: in memory, or in a folder."""

    def missing(self, study: Study, /) -> list[Task]:
        """Return the runs of a study that are not kept yet."""

    def keep(self, ran: Ran, /) -> None:
        """Keep what a run gave."""


def run_missing(
    missing: Sequence[Task], kept: Kept, runner: Runner, advance: Advance = lambda count: None
) -> Iterator[Ran]:
    """Run tasks, keep each when it has ended, and yield it."""
    for ran in runner(missing):
        kept.keep(ran)
        advance(1)
        yield ran


def run_study(
    study: Study,
    runner: Runner,
    advance: Advance = lambda count: None,
    *,
    keeps_records: bool = False,
) -> Results:
    """Run a whole study, and return what was measured.

    Args:
        keeps_records: keep what pictures are drawn from.

    Raises:
        EngineError: a run failed; the message says which, and why.
    """
    kept = KeptRuns(study.slo, keeps_records=keeps_records)
    for ran in run_missing(kept.missing(study), kept, runner, advance):
        if ran.record is None:
            raise EngineError(f"{ran.task} failed: {ran.problem}")
    return kept.results(study)


class KeptRuns:
    """Runs that are kept in memory, by arm, workload, seed and number of requests.

    Args:
        slo: what goodput is measured by.
        keeps_records: keep the whole records, not their measures alone.
    """

    def __init__(self, slo: ServiceLevel, *, keeps_records: bool = False) -> None:
        self._slo = slo
        self._keeps_records = keeps_records
        self._known: dict[object, RunResult] = {}
        self._records: dict[tuple[str, str, int], RunRecord] = {}
        self.problems: dict[str, str] = {}
        """Why a run of an arm failed, by its label."""

    def missing(self, study: Study, /) -> list[Task]:
        return [task for task in study.tasks() if _place(task) not in self._known]

    def keep(self, ran: Ran, /) -> None:
        if ran.record is None:
            self.problems.setdefault(ran.task.arm, ran.problem or "it gave no result")
            return
        self._known[_place(ran.task)] = run_result(ran.task.place, ran.record, self._slo)
        if self._keeps_records:
            self._records[ran.task.place] = ran.record

    def results(self, study: Study) -> Results:
        """Return the results of a study, less the runs that failed."""
        runs = (self._known.get(_place(task)) for task in study.tasks())
        return Results(
            arms=[one.arm for one in study.arms],
            workloads=[workload.name for workload in study.workloads],
            seeds=study.seeds,
            runs=[run for run in runs if run is not None],
            slo=study.slo,
            num_replicas=study.num_replicas,
            chosen=study.chosen,
            record=lambda *place: self._records.get(place),
        )


def run_result(place: tuple[str, str, int], record: RunRecord, slo: ServiceLevel) -> RunResult:
    """Return what a run measured.

    Args:
        place: its arm, workload and seed.
    """
    return RunResult(*place, measures=measures(record, slo), failure=record.failure)


def _place(task: Task) -> object:
    return *task.place, task.workload.requests
