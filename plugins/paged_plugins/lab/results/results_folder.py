"""A folder of results: opened for an ablation, filled run by run, finished with tables."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import IO, Self

from paged_core.errors import SettingsError
from paged_core.registry import Registry
from paged_plugins.files import read_file, unwritable
from paged_plugins.lab.measures.run_measures import measures
from paged_plugins.lab.results.atomic_file import PARTIAL, write_bytes
from paged_plugins.lab.results.manifest import Manifest, RunEntry, new_manifest, now, write_manifest
from paged_plugins.lab.results.results import RunResult
from paged_plugins.lab.results.run_store import RunStore
from paged_plugins.lab.results.tables import TABLES, write_tables
from paged_plugins.lab.runs.run_record import RunRecord
from paged_plugins.lab.study.ablation import parse_ablation
from paged_plugins.lab.study.plan import Plan
from paged_plugins.lab.tasks.task import Ran, Task
from paged_plugins.progress import MANY, progress

ABLATION, RECORDS = "ablation.yaml", "runs"
"""Names in a folder of results."""
_LOCK = "lock"
"""Locked while results are written."""


class ResultsFolder:
    """The results of one ablation; leaving its ``with`` lets others write to the folder.

    Args:
        folder: is made if it is missing; runs that it has already are kept.
        fresh: remove the results that are in it.

    Raises:
        SettingsError: it is no folder of results, or of another ablation's, or cannot be made.
    """

    def __init__(self, folder: Path, plan: Plan, registry: Registry, *, fresh: bool) -> None:
        _check(folder, plan, fresh)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = _lock(folder)
        except OSError as error:
            raise unwritable(folder, error, "--output") from None
        write_bytes(folder / ABLATION, plan.text.encode())  # first: the folder is known by it
        self._folder = folder
        self._plan = plan
        self._store = RunStore(folder / RECORDS, registry)
        self._keys: dict[tuple[str, str, int], str] = {}
        tasks = list(plan.tasks())
        with progress(len(tasks), "looking for results", least=MANY) as advance:
            for task in tasks:
                self._keys[task.place] = self._store.key(task)
                advance()
        self._store.keep_only(() if fresh else set(self._keys.values()))
        for name in TABLES:
            (folder / name).unlink(missing_ok=True)
        self._problems: dict[tuple[str, str, int], str] = {}
        self._manifest = self._described(registry)
        write_manifest(self._folder, self._manifest)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.close()

    def missing(self) -> list[Task]:
        """Return the runs that have no record yet."""
        return [task for task in self._plan.tasks() if self._keys[task.place] not in self._store]

    def keep(self, ran: Ran) -> None:
        """Keep what a run gave."""
        if ran.record is None:
            self._problems[ran.task.place] = ran.problem or "it gave no result"
        else:
            self._store.write(self._keys[ran.task.place], ran.task, ran.record)

    def finish(self) -> bool:
        """Write the tables; return whether those in Parquet are among them."""
        failures: dict[tuple[str, str, int], str | None] = {}
        is_whole = write_tables(self._folder, self._results(failures))
        entries = tuple(
            entry.model_copy(
                update={"problem": self._problems.get(place), "failure": failures.get(place)}
            )
            for place, entry in zip(self._places(), self._manifest.runs, strict=True)
        )
        write_manifest(
            self._folder, self._manifest.model_copy(update={"runs": entries, "finished": now()})
        )
        return is_whole

    def _results(
        self, failures: dict[tuple[str, str, int], str | None]
    ) -> Iterator[tuple[RunResult, RunRecord]]:
        """Yield the results with their records; enter what requests were told into ``failures``."""
        for arm, workload, seed in self._places():
            try:
                record = self._store.read(self._keys[arm, workload, seed])
            except SettingsError:
                continue  # the run failed
            failures[arm, workload, seed] = record.failure
            found = measures(record, self._plan.ablation.slo)
            yield RunResult(arm=arm, workload=workload, seed=seed, measures=found), record

    def _places(self) -> list[tuple[str, str, int]]:
        """Return the runs as tables list them: arm by arm, workload by workload."""
        ablation = self._plan.ablation
        names = [workload.name for workload in ablation.workloads]
        labels = [one.arm.label for one in self._plan.arms]
        return list(product(labels, names, ablation.seeds))

    def _described(self, registry: Registry) -> Manifest:
        ablation = self._plan.ablation
        made = new_manifest(
            f"paged-core lab run {self._plan.source}",
            self._plan.arms,
            ablation.workloads,
            ablation.seeds,
            ablation.slo,
            registry,
        )
        runs = tuple(
            RunEntry(arm=arm, workload=name, seed=seed, key=self._keys[arm, name, seed])
            for arm, name, seed in self._places()
        )
        return made.model_copy(update={"runs": runs})


def _check(folder: Path, plan: Plan, fresh: bool) -> None:
    """Refuse a folder whose content would be mixed with the results of this ablation."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise SettingsError(f"{folder} is no folder; choose another with --output")
    if all(path.name.endswith((PARTIAL, _LOCK)) for path in folder.iterdir()):
        return
    if not (folder / ABLATION).is_file():
        raise SettingsError(f"{folder} has other files in it; choose a new folder with --output")
    if fresh:
        return
    with suppress(SettingsError):
        if parse_ablation(read_file(folder / ABLATION), folder / ABLATION) == plan.ablation:
            return
    raise SettingsError(
        f"{folder} has the results of another ablation; choose another folder with --output, or "
        "replace them with --fresh"
    )


def _lock(folder: Path) -> IO[bytes]:
    """Return an open file; while it is open, no other process can write results to the folder."""
    file = (folder / _LOCK).open("wb")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise SettingsError(
            f"another `lab run` is writing to {folder}; wait for it, or choose another folder with "
            "--output"
        ) from None
    return file
