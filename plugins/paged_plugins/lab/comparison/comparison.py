"""Arms on one workload with several seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from paged_core.errors import EngineError
from paged_core.registry import Registry
from paged_plugins.lab.measures import MEASURES, ServiceLevel, measures
from paged_plugins.lab.results.results import Results, RunResult
from paged_plugins.lab.runs.run_record import RunRecord
from paged_plugins.lab.study.arms import PlannedArm
from paged_plugins.lab.tasks.pool import run_tasks
from paged_plugins.lab.tasks.task import Task
from paged_plugins.workloads.spec import WorkloadSpec


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What is compared."""

    arms: Sequence[PlannedArm]
    workload: WorkloadSpec
    num_seeds: int
    slo: ServiceLevel = field(default_factory=ServiceLevel)

    @property
    def measures(self) -> list[str]:
        """Names of those that are compared: the ones that a table shows."""
        return [name for name, measure in MEASURES.items() if measure.shown]

    def tasks(self) -> Iterator[Task]:
        """Yield the runs: those of a seed one after another, and of the next in turned order, so
        that a machine that becomes slower or faster does so to all arms alike.
        """
        for seed in range(self.num_seeds):
            for one in self.arms if seed % 2 == 0 else reversed(self.arms):
                yield Task(
                    arm=one.arm.label, settings=one.settings, workload=self.workload, seed=seed
                )

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
            found[place] = RunResult(
                arm=arm,
                workload=workload,
                seed=seed,
                measures=measured,
                failure=ran.record.failure,
            )
            if keeps_records:
                records[place] = ran.record
        return Results(
            arms=[one.arm for one in self.arms],
            workloads=[self.workload.name],
            seeds=range(self.num_seeds),
            runs=[found[task.place] for task in tasks],
            slo=self.slo,
            record=lambda arm, workload, seed: records.get((arm, workload, seed)),
        )
