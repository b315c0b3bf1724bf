"""One run of a study, and the digest of all that it depends on, by which it is found again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any

from paged_core.errors import PagedCoreError, error_text
from paged_core.plugins.registry import Registry
from paged_core.settings.schema import EngineSettings
from paged_plugins.lab.cluster.simulate_cluster import simulate_cluster
from paged_plugins.lab.runs.run_record import RunRecord
from paged_plugins.lab.runs.run_workload import run_workload
from paged_plugins.lab.runs.shadows import Baseline
from paged_plugins.lab.settings import SIMULATED
from paged_plugins.lab.tasks.packages import changed_file, digest, known_digest, stamp_of
from paged_plugins.lab.tasks.sources import Sources, leaves
from paged_plugins.machine import cpu_model
from paged_plugins.progress import errors_text
from paged_plugins.workloads.request import WorkloadRequest
from paged_plugins.workloads.spec import WorkloadSpec
from paged_plugins.workloads.workload import Workload


class InputChanged(PagedCoreError):
    """A file that runs of a study read is not as it was when the study began."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"{path} has changed since the study began, and all of its runs are to read the same"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One run. It can be pickled, for a process that has the same packages."""

    arm: str
    settings: EngineSettings
    workload: WorkloadSpec
    seed: int
    num_replicas: int | None = None
    """Engines behind a router; ``None``: one alone."""
    baseline: Baseline | None = None
    """Components whose decisions are counted; ``None``: of none."""
    reverses_ties: bool = False
    """True if requests that arrive at the same moment do so in reverse order."""
    files: Mapping[Path, str] | None = None
    """Digests of the files that it reads, as they were for all runs of a study; ``None``: whatever
    is in them."""

    @property
    def place(self) -> tuple[str, str, int]:
        """Arm, name of the workload and seed, by which tables find it."""
        return self.arm, self.workload.name, self.seed

    def serve(self, registry: Registry) -> RunRecord:
        """Run it in this process.

        Raises:
            InputChanged: a file does not have the content that the task says, or was written while
                it was read.
        """
        if self.files is None:
            return self._served(registry)
        before = self._stamps()
        self._check(before)
        try:
            return self._served(registry)
        finally:
            self._check(before)

    def _stamps(self) -> dict[Path, tuple[int, ...]]:
        found = {}
        for path in _files_of(self):
            with suppress(OSError):  # it is gone
                found[path] = stamp_of(path)
        return found

    def _check(self, before: Mapping[Path, tuple[int, ...]]) -> None:
        """Refuse files that have changed since the study began, or since they had these stamps."""
        now, known = self._stamps(), self.files or {}
        written = (path for path in {*before, *now} if before.get(path) != now.get(path))
        new = (path for path in now if path not in known)
        if changed := next(written, None) or next(new, None) or changed_file(known):
            raise InputChanged(changed)

    def _served(self, registry: Registry) -> RunRecord:
        workload: Workload = self.workload.build()
        if self.reverses_ties:
            workload = _ReversedTies(workload.name, workload)
        asked = self.settings, registry, workload, self.seed
        if self.num_replicas is None:
            return run_workload(*asked, baseline=self.baseline)
        return simulate_cluster(*asked, num_replicas=self.num_replicas, baseline=self.baseline)

    def __str__(self) -> str:
        return f"{self.arm}, {self.workload.name}, seed {self.seed}"


@dataclass(frozen=True, slots=True)
class _ReversedTies:
    """A workload whose requests of one moment arrive in reverse order."""

    name: str
    inner: Workload

    def draw(self, seed: int, /) -> Iterator[WorkloadRequest]:
        for _, together in groupby(self.inner.draw(seed), key=attrgetter("at")):
            yield from reversed(list(together))


@dataclass(frozen=True, slots=True)
class Ran:
    """A task that was run; one of ``record`` and ``problem`` is ``None``."""

    task: Task
    record: RunRecord | None
    problem: str | None
    """Why there is no record."""

    @property
    def failure(self) -> str | None:
        """Why it failed: it gave no record, or requests ended with an error."""
        if self.record is None:
            return self.problem or "it gave no result"
        num_errors = self.record.num_errors
        if not num_errors:
            return None
        return errors_text(num_errors, len(self.record.requests), self.record.error)


def run(task: Task, registry: Registry) -> Ran:
    """Run a task in this process. What it raises is the result, not an exception."""
    try:
        return Ran(task, task.serve(registry), None)
    except InputChanged as error:
        return Ran(task, None, str(error))
    except Exception as error:  # noqa: BLE001 - one bad arm must not take the others down
        return Ran(task, None, error_text(error))


class TaskDigests:
    """Digests of tasks: those of equal digests have equal results."""

    def __init__(self, registry: Registry) -> None:
        self._sources = Sources(registry)

    def of(self, task: Task) -> str:
        """Return the digest of a task, 16 hexadecimal digits."""
        settings, files = task.settings, task.files
        if files is None:
            files = contents(_files_of(task))
        parts: dict[str, Any] = {
            "settings": settings.model_dump(
                mode="json", exclude={*self._sources.unasked(settings)}
            ),
            "workload": task.workload.written(),
            "seed": task.seed,
            "replicas": task.num_replicas,
            "code": self._sources.of(settings),
            "files": [files[path] for path in sorted(files)],
        }
        if task.baseline is not None:
            based = settings.model_copy(update=dict(task.baseline))
            chosen = {slot: each.model_dump(mode="json") for slot, each in task.baseline.items()}
            parts["baseline"] = [chosen, self._sources.of(based)]
        if settings.executor.name != SIMULATED:
            parts["machine"] = cpu_model()
        return digest(parts)

    def checked(self, ran: Ran) -> Ran:
        """Return what became of a task: nothing, if a source of its digest has changed meanwhile,
        of which it may have been made.
        """
        changed = ran.record and self._sources.changed(ran.task.settings)
        return Ran(ran.task, None, str(InputChanged(changed))) if changed else ran


def contents(files: Iterable[Path]) -> dict[Path, str]:
    """Return the digests of files."""
    return {path: known_digest(path) for path in files}


def files_of_settings(settings: EngineSettings) -> set[Path]:
    """Return the files that settings name, and those of models and folders that they name: a run
    reads them, beside sources.
    """
    found = {*_files_in({key: part for key, part in settings if key != "observers"})}
    if settings.executor.name != SIMULATED:
        folders = [Path(each) for each in (settings.model, settings.tokenizer) if each]
        found.update(path for each in folders for path in each.glob("*") if path.is_file())
    return found


def files_of_workload(workload: WorkloadSpec) -> set[Path]:
    """Return the files that a workload names."""
    return {*_files_in(workload)}


def _files_of(task: Task) -> set[Path]:
    return files_of_settings(task.settings) | files_of_workload(task.workload)


def _files_in(value: Any) -> Iterator[Path]:
    """Yield the files that a part of settings or a workload names."""
    for named in leaves(value):
        if isinstance(named, Path) and named.is_dir():
            yield from (path for path in named.rglob("*") if path.is_file())
        elif isinstance(named, str | Path):
            with suppress(OSError, ValueError):  # a text that is no path
                for path in (Path(named), Path(named, "config.json")):
                    if path.is_file():
                        yield path
