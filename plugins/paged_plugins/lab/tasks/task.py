"""One run of a study: which engine serves which requests, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass

from paged_core.errors import error_text
from paged_core.registry import Registry
from paged_core.settings import EngineSettings
from paged_plugins.lab.runs.run_record import RunRecord
from paged_plugins.lab.runs.run_workload import run_workload
from paged_plugins.workloads.spec import WorkloadSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One run. It can be pickled, for a process that has the same packages."""

    arm: str
    settings: EngineSettings
    workload: WorkloadSpec
    seed: int

    @property
    def place(self) -> tuple[str, str, int]:
        """Arm, name of the workload and seed, by which tables find it."""
        return self.arm, self.workload.name, self.seed

    def __str__(self) -> str:
        return f"{self.arm}, {self.workload.name}, seed {self.seed}"


@dataclass(frozen=True, slots=True)
class Ran:
    """A task that was run; one of ``record`` and ``problem`` is ``None``."""

    task: Task
    record: RunRecord | None
    problem: str | None
    """Why it failed."""


def run(task: Task, registry: Registry) -> Ran:
    """Run a task in this process. What the engine raises is the result, not an exception."""
    try:
        record = run_workload(task.settings, registry, task.workload.build(), task.seed)
    except Exception as error:  # noqa: BLE001 - one bad arm must not take the others down
        return Ran(task, None, error_text(error))
    return Ran(task, record, None)
