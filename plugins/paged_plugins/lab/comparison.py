"""Arms on one workload with several seeds: their runs, and what is said about them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from paged_core.errors import EngineError
from paged_core.registry import Registry
from paged_core.settings import EngineSettings
from paged_plugins.lab.measures import MEASURES, measures
from paged_plugins.lab.results import Arm, Results, RunResult, ServiceLevel
from paged_plugins.lab.run_record import RunRecord
from paged_plugins.lab.statistics.differences import Difference, differences
from paged_plugins.lab.statistics.sentences import sentences
from paged_plugins.lab.statistics.simultaneous import minimum_seeds
from paged_plugins.lab.statistics.wording import change_unit
from paged_plugins.lab.study.run_tasks import run_tasks
from paged_plugins.lab.study.task import Task
from paged_plugins.workloads.spec import WorkloadSpec

CONFIDENCE = 0.95


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What is compared."""

    arms: Sequence[tuple[Arm, EngineSettings]]
    workload: WorkloadSpec
    num_seeds: int
    slo: ServiceLevel = field(default_factory=ServiceLevel)

    @property
    def measures(self) -> list[str]:
        """Names of those that are compared: the ones that a table shows; goodput under limits."""
        has_limits = self.slo != ServiceLevel()
        shown = [name for name, measure in MEASURES.items() if measure.shown]
        return [name for name in shown if has_limits or name != "goodput_per_s"]

    def tasks(self) -> Iterator[Task]:
        """Yield the runs: those of a seed one after another, and of the next in turned order, so
        that a machine that becomes slower or faster does so to all arms alike.
        """
        for seed in range(self.num_seeds):
            for arm, settings in self.arms if seed % 2 == 0 else reversed(self.arms):
                yield Task(arm=arm.label, settings=settings, workload=self.workload, seed=seed)

    def run(
        self,
        registry: Registry,
        *,
        workers: int = 1,
        advance: Callable[[], None] = lambda: None,
        keeps_records: bool = False,
    ) -> Results:
        """Run all arms and return what was measured.

        Args:
            workers: processes.
            advance: called after every run.
            keeps_records: keep what pictures are drawn from.

        Raises:
            EngineError: a run failed; the message says which, and why.
        """
        found: dict[tuple[str, str, int], RunResult] = {}
        records: dict[tuple[str, str, int], RunRecord] = {}
        tasks = list(self.tasks())
        for ran in run_tasks(tasks, registry, workers=workers, progress=advance):
            if ran.record is None:
                raise EngineError(f"{ran.task} failed: {ran.problem}")
            arm, workload, seed = place = ran.task.place
            measured = measures(ran.record, self.slo)
            found[place] = RunResult(arm=arm, workload=workload, seed=seed, measures=measured)
            if keeps_records:
                records[place] = ran.record
        return Results(
            arms=[arm for arm, _ in self.arms],
            workloads=[self.workload.name],
            seeds=range(self.num_seeds),
            runs=[found[task.place] for task in tasks],
            slo=self.slo,
            record=lambda arm, workload, seed: records.get((arm, workload, seed)),
        )


@dataclass(frozen=True)
class Findings:
    """What the results of a comparison say."""

    results: Results
    differences: Sequence[Difference]
    sentences: Sequence[str]

    @classmethod
    def of(cls, results: Results, measures: Sequence[str]) -> Findings:
        """Return the findings in some measures."""
        found = differences(results, CONFIDENCE, measures=measures)
        return cls(results, found, sentences(results, found, CONFIDENCE))

    def document(self) -> dict[str, Any]:
        """Return everything as plain data."""
        names = dict.fromkeys(each.measure for each in self.differences)
        return {
            "workload": self.results.workloads[0],
            "seeds": list(self.results.seeds),
            "confidence": CONFIDENCE,
            "minimum_seeds": minimum_seeds(CONFIDENCE),
            "arms": [
                {"arm": arm.label, "changes": dict(arm.changes), "compared_with": arm.compared_with}
                for arm in self.results.arms
            ],
            "measures": {name: _described(name) for name in names},
            "differences": [_row(each) for each in self.differences],
            "sentences": list(self.sentences),
            "runs": [
                {"arm": run.arm, "seed": run.seed, "measures": dict(run.measures)}
                for run in self.results.runs
            ],
        }


def _described(name: str) -> dict[str, Any]:
    measure = MEASURES[name]
    return {"title": measure.title, "unit": measure.unit, "better": measure.better}


def _row(each: Difference) -> dict[str, Any]:
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
