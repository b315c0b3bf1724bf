"""The folder of the results of a study: its manifest, its records, its tables."""

from __future__ import annotations

import fcntl
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from itertools import product
from pathlib import Path
from typing import IO, Annotated, Any, Literal, Self

from pydantic import Field

from paged_core.errors import SettingsError
from paged_core.registry import Registry
from paged_plugins.input_file import read_file
from paged_plugins.lab.comparison.comparison import Comparison
from paged_plugins.lab.measures import ServiceLevel, measures
from paged_plugins.lab.results.results import Results, RunResult
from paged_plugins.lab.results.store import RunStore
from paged_plugins.lab.results.tables import PARTIAL, TABLES, write_bytes, write_tables
from paged_plugins.lab.runs.run_record import RunRecord
from paged_plugins.lab.study.arms import Arm, PlannedArm
from paged_plugins.lab.study.study import Plan, Strict, parse_ablation
from paged_plugins.lab.tasks.task import Ran, Task
from paged_plugins.machine import summary
from paged_plugins.output_file import unwritable
from paged_plugins.progress import MANY, progress
from paged_plugins.workloads.spec import WorkloadSpec

MANIFEST = "manifest.json"
"""Name in a folder of results."""
_PACKAGES = (
    *("paged-core", "numpy", "pydantic", "torch", "transformers", "pyarrow", "ray", "triton"),
)


class RunEntry(Strict):
    """A run, and where its record is."""

    arm: str
    workload: str
    seed: int
    key: Annotated[str, Field(pattern=r"^[0-9a-f]+$")]
    problem: str | None = None
    """Why there is no record."""
    failure: str | None = None
    """What the first request was told that failed."""


class Manifest(Strict):
    """All that a reader of the tables needs to know about where they come from."""

    format: Literal[1] = 1
    command: str
    arms: tuple[Arm, ...]
    settings: dict[str, dict[str, Any]]
    """Resolved, by the label of the arm."""
    workloads: tuple[dict[str, Any], ...]
    seeds: tuple[int, ...]
    slo: ServiceLevel
    runs: tuple[RunEntry, ...] = ()
    versions: dict[str, str]
    git: str | None
    """The revision, if the code is a checkout; it ends with ``+changes`` if files differ."""
    machine: dict[str, Any]
    started: str
    """UTC, as ISO 8601."""
    finished: str | None = None
    """``None``: it was interrupted, or is under way."""


def new_manifest(
    command: str,
    arms: Sequence[PlannedArm],
    workloads: Iterable[WorkloadSpec],
    seeds: Iterable[int],
    slo: ServiceLevel,
    registry: Registry,
) -> Manifest:
    """Return the manifest of runs that start now.

    Args:
        command: as it was given.
        arms: the first is the base.
    """
    return Manifest(
        command=command,
        arms=tuple(one.arm for one in arms),
        settings={one.arm.label: one.settings.model_dump(mode="json") for one in arms},
        workloads=tuple(workload.written() for workload in workloads),
        seeds=tuple(seeds),
        slo=slo,
        versions=versions(registry),
        git=git_revision(),
        machine=summary(),
        started=now(),
    )


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write a manifest into a folder of results."""
    write_bytes(folder / MANIFEST, (manifest.model_dump_json(indent=2) + "\n").encode())


def now() -> str:
    """Return the time, UTC, as ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def versions(registry: Registry) -> dict[str, str]:
    """Return the versions of the packages that results may depend on."""
    found = {one.distribution: one.version for one in registry.plugins if one.status == "active"}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return dict(sorted(found.items()))


def git_revision() -> str | None:
    """Return the revision of the checkout that this code is in; ``None``: it is in none."""
    file = Path(__file__)
    if _git(file.parent, "ls-files", "--error-unmatch", file.name) is None:
        return None
    revision = _git(file.parent, "rev-parse", "HEAD")
    changed = _git(file.parent, "status", "--porcelain", "--untracked-files=no")
    return f"{revision}+changes" if changed else revision


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


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


def make_folder(folder: Path) -> None:
    """Make the folder, before anything is run.

    Raises:
        SettingsError: it has something in it already, or cannot be made.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise SettingsError(f"--output {folder}: there is something already; give a new folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(folder, error, "--output") from None


def manifest_of(comparison: Comparison, registry: Registry, command: str) -> Manifest:
    """Return what a comparison ran, with what, and where.

    Args:
        command: as it was given.
    """
    made = new_manifest(
        command,
        comparison.arms,
        [comparison.workload],
        range(comparison.num_seeds),
        comparison.slo,
        registry,
    )
    return made.model_copy(update={"finished": now()})


def write_folder(
    folder: Path, comparison: Comparison, results: Results, registry: Registry, manifest: Manifest
) -> None:
    """Write the manifest, the tables and the records of all runs.

    Args:
        folder: as :func:`make_folder` has made it.
        results: with all records.
    """
    store = RunStore(folder / RECORDS, registry)
    entries = []
    rows = []
    for task, run in zip(comparison.tasks(), results.runs, strict=True):
        record = results.record(*task.place)
        assert record is not None
        store.write(key := store.key(task), task, record)
        entries.append(
            RunEntry(
                arm=run.arm,
                workload=run.workload,
                seed=run.seed,
                key=key,
                failure=run.failure,
            )
        )
        rows.append((run, record))
    write_tables(folder, rows)
    whole = manifest.model_copy(update={"runs": tuple(entries)})
    write_manifest(folder, whole)
