"""The folder of the results of a study: its manifest, its records, its tables."""

from __future__ import annotations

import fcntl
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from itertools import product
from pathlib import Path
from typing import IO, Annotated, Any, Literal, Self

from pydantic import Field

from paged_core.errors import SettingsError
from paged_core.plugins.registry import Registry
from paged_plugins.files import read_file
from paged_plugins.lab.measures import ServiceLevel, measures
from paged_plugins.lab.results.results import Results, RunFacts, RunResult
from paged_plugins.lab.results.store import RUNS, RecordFile, write_measures
from paged_plugins.lab.runs.run_record import RunRecord
from paged_plugins.lab.study.arms import Arm, setting_text
from paged_plugins.lab.study.study import Ablation, Strict, Study, parse
from paged_plugins.lab.tasks.packages import digest
from paged_plugins.lab.tasks.sources import Sources
from paged_plugins.lab.tasks.task import Ran, Task, TaskDigests
from paged_plugins.machine import summary
from paged_plugins.progress import MANY, progress
from paged_plugins.written_files import is_partial, remove_partials, unwritable, write_text

MANIFEST, ABLATION, RECORDS = "manifest.json", "ablation.yaml", "runs"
CAPACITY = "capacity"
"""Names in a folder of results."""
MAX_SIZE = 2**30
"""Bytes of a manifest, and of the table of runs."""
_LOCK = "lock"
"""Locked while results are written."""
_PACKAGES = (*("paged-core", "numpy", "pydantic", "torch", "transformers", "ray", "triton"),)


class RunEntry(RunFacts):
    """A run, and where its record is."""

    arm: str
    workload: str
    seed: int
    key: Annotated[str, Field(pattern=r"^[0-9a-f]+$")]
    problem: str | None = None
    """Why there is no record."""

    @property
    def place(self) -> tuple[str, str, int]:
        """Arm, workload and seed."""
        return self.arm, self.workload, self.seed

    def file(self, folder: Path) -> RecordFile:
        """Return the file of its record in a folder of results."""
        return RecordFile(folder / RECORDS, self.place, self.key)


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
    replicas: int | None = None
    """Engines behind a router, in each run; ``None``: one alone."""
    is_exact: bool = False
    """True if seeds draw nothing."""
    chosen: tuple[dict[str, Any], ...] = ()
    """Choices of rates and blocks for workloads."""
    runs: tuple[RunEntry, ...] = ()
    versions: dict[str, str]
    git: dict[str, str]
    """Revisions by package, of those that runs use and that are checkouts; one ends with
    ``+changes`` if files differ."""
    machine: dict[str, Any]
    started: str
    """UTC, as ISO 8601."""
    finished: str | None = None
    """``None``: it was interrupted, or is in flight."""


def new_manifest(study: Study, registry: Registry) -> Manifest:
    """Return the manifest of a study that starts now."""
    return Manifest(
        command=study.command,
        arms=tuple(one.arm for one in study.arms),
        settings={one.arm.label: one.settings.model_dump(mode="json") for one in study.arms},
        workloads=tuple(workload.written() for workload in study.workloads),
        seeds=tuple(study.seeds),
        slo=study.slo,
        replicas=study.num_replicas,
        is_exact=study.is_exact,
        chosen=tuple(dict(each) for each in study.chosen),
        versions=_versions(registry),
        git=Sources(registry).revisions(one.settings for one in study.arms),
        machine=summary(),
        started=_now(),
    )


class ResultsFolder:
    """The results of an ablation, kept run by run; leaving its ``with`` lets others write to the
    folder.

    Args:
        folder: is made if it is missing; runs that it has already are kept.
        fresh: remove the results that are in it.

    Raises:
        SettingsError: it is no folder of results, or of another ablation's, or cannot be made; or a
            record in it is that of another run. The results in it stay.
    """

    def __init__(self, folder: Path, study: Study, registry: Registry, *, fresh: bool) -> None:
        check_folder(folder, study, fresh=fresh)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = _lock(folder)
        except OSError as error:
            raise unwritable(folder, error, "--output") from None
        try:
            self._folder = folder
            self._digests = TaskDigests(registry)
            self._entries = _entries(study, self._digests)
            _refuse_links(folder, self._entries.values())
            self._missing = [
                place
                for place, entry in self._entries.items()
                if fresh or _is_missing(entry.file(folder).known())
            ]
            write_text(folder / ABLATION, study.text)  # first: the folder is known by it
            _make_records(folder)
            _clear(folder, self._entries.values(), fresh)
            self._manifest = new_manifest(study, registry)
            runs = tuple(self._entries.values())
            _write_manifest(folder, self._manifest.model_copy(update={"runs": runs}))
        except BaseException:
            self._lock.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.close()

    def missing(self, study: Study, /) -> list[Task]:
        places = set(self._missing)
        return [task for task in study.tasks() if task.place in places]

    def keep(self, ran: Ran, /) -> Ran:
        """Keep the record of a run, if it was made of what its digest says, or why there is none;
        return what became of it.
        """
        ran = self._digests.checked(ran)
        entry = self._entries[ran.task.place]
        if ran.record is not None:
            entry.file(self._folder).write(ran.record)
            return ran
        problem = {"problem": ran.problem or "it gave no result"}
        self._entries[ran.task.place] = entry.model_copy(update=problem)
        return ran

    def finish(self) -> None:
        """Write the table of all measures, and what became of each run."""
        _finish(self._folder, self._manifest, self._entries)


def _is_missing(record: RunRecord | None) -> bool:
    """Say whether a run is to be done: it has no record, or one of requests that failed."""
    return record is None or record.num_errors > 0


def make_folder(folder: Path) -> None:
    """Make a new folder, before anything is run.

    Raises:
        SettingsError: it has something in it already, or cannot be made.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise SettingsError(f"--output {folder}: there is something already; give a new folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(folder, error, "--output") from None


def write_folder(
    folder: Path, study: Study, results: Results, registry: Registry, manifest: Manifest
) -> None:
    """Write the manifest, the tables and the records of all runs of a study.

    Args:
        folder: as :func:`make_folder` has made it.
        results: with the records of all runs that gave one.
    """
    entries = _entries(study, TaskDigests(registry))
    _make_records(folder)
    for place, entry in entries.items():
        record = results.record(*place)
        if record is not None:
            entry.file(folder).write(record)
        else:
            entries[place] = entry.model_copy(update={"problem": results.problems.get(place)})
    _finish(folder, manifest, entries)


_Entries = dict[tuple[str, str, int], RunEntry]
"""By arm, workload and seed, as tables list them: arm by arm, workload by workload."""


def _make_records(folder: Path) -> None:
    try:
        (folder / RECORDS).mkdir(exist_ok=True)
    except OSError as error:
        raise unwritable(folder / RECORDS, error, "--output") from None


def _entries(study: Study, digests: TaskDigests) -> _Entries:
    keys, taken = {}, set[str]()
    with progress(len(study), "looking for results", least=MANY) as advance:
        for task in study.tasks():
            key = digests.of(task)
            if key in taken:  # other engines have the settings of the first arm
                key = digest([key, task.arm])
            keys[task.place] = key
            taken.add(key)
            advance()
    names = [workload.name for workload in study.workloads]
    places = product([one.arm.label for one in study.arms], names, study.seeds)
    return {
        (arm, name, seed): RunEntry(arm=arm, workload=name, seed=seed, key=keys[arm, name, seed])
        for arm, name, seed in places
    }


def _finish(folder: Path, manifest: Manifest, entries: _Entries) -> None:
    """Write the measures of the records that there are, and what became of each run."""
    ended = []

    def results() -> Iterator[RunResult]:
        for place, entry in entries.items():
            record = entry.file(folder).known()
            if record is None:
                ended.append(entry)
                continue
            facts = RunFacts.of(record)
            ended.append(entry.model_copy(update=dict(facts)))
            yield RunResult(*place, measures(record, manifest.slo), facts)

    write_measures(folder, results())
    update = {"runs": tuple(ended), "finished": _now()}
    _write_manifest(folder, manifest.model_copy(update=update))


def _write_manifest(folder: Path, manifest: Manifest) -> None:
    write_text(folder / MANIFEST, manifest.model_dump_json(indent=2) + "\n")


def _clear(folder: Path, entries: Collection[RunEntry], fresh: bool) -> None:
    """Remove what earlier runs have written here and this one does not keep: tables, records that
    older code or settings made, unfinished files of processes that were killed.

    Nothing is removed that has no name that such a run gives, or that is no regular file.
    """
    if not (folder / RUNS).is_symlink():
        (folder / RUNS).unlink(missing_ok=True)
    remove_partials(folder, {ABLATION, MANIFEST, RUNS})
    kept = set() if fresh else {entry.key for entry in entries}
    files = [entry.file(folder) for entry in (*entries, *_earlier(folder))]
    for file in files:
        if file.key not in kept:
            file.remove()
    remove_partials(folder / RECORDS, {file.name for file in files})


def _earlier(folder: Path) -> Sequence[RunEntry]:
    """Return the runs that the manifest in a folder names, if there is one."""
    with suppress(SettingsError, ValueError):
        return Manifest.model_validate_json(read_file(folder / MANIFEST, MAX_SIZE)).runs
    return ()


def check_folder(folder: Path, study: Study, *, fresh: bool) -> None:
    """Refuse a folder whose content would be mixed with the results of this ablation.

    Raises:
        SettingsError: it is such a one.
    """
    if not folder.exists():
        return
    if not folder.is_dir():
        raise SettingsError(f"{folder} is no folder; choose another with --output")
    if all(
        path.name in (_LOCK, CAPACITY) or is_partial(path, ABLATION) for path in folder.iterdir()
    ):
        return
    for name in (ABLATION, MANIFEST, _LOCK, RUNS):
        if (folder / name).exists() and not (folder / name).is_file():
            raise SettingsError(
                f"{folder / name} is no regular file; remove it, or choose another folder with "
                "--output"
            )
    if (folder / CAPACITY).is_symlink():
        raise SettingsError(f"{folder / CAPACITY} is a link; remove it")
    known = folder / ABLATION
    if not known.is_file():
        raise SettingsError(f"{folder} has other files in it; choose a new folder with --output")
    if fresh:
        return
    with suppress(SettingsError):
        if _extends(parse(study.text, Ablation, known), parse(read_file(known), Ablation, known)):
            return
    raise SettingsError(
        f"{folder} has the results of another ablation, to which seeds, values of axes and "
        "workloads may be added alone; choose another folder with --output, or replace them with "
        "--fresh"
    )


def _extends(new: Ablation, old: Ablation) -> bool:
    """Return whether an ablation has all the runs of another, of which more may be told."""
    more = {"seeds", "slo", "axes", "workloads"}

    def axes(each: Ablation) -> dict[str, list[tuple[str, Any]]]:
        return {key: [(setting_text(v), v) for v in values] for key, values in each.axes.items()}

    added = axes(new)
    return (
        new.model_copy(update={key: getattr(old, key) for key in more}) == old
        and {*old.seeds} <= {*new.seeds}
        and all(workload in new.workloads for workload in old.workloads)
        and (added.keys() == old.axes.keys() or not new.product)
        and all(v in added.get(key, ()) for key, values in axes(old).items() for v in values)
    )


def _refuse_links(folder: Path, entries: Iterable[RunEntry]) -> None:
    """Refuse records that would be written somewhere else, over what may not be ours."""
    for path in (folder / RECORDS, *(entry.file(folder).path for entry in entries)):
        if path.is_symlink():
            raise SettingsError(
                f"{path} is a link, and records are written to no other place; remove it, or "
                "choose another folder with --output, which may be a link itself"
            )


def _lock(folder: Path) -> IO[bytes]:
    """Return an open file; while it is open, no other process can write results to the folder."""
    file = (folder / _LOCK).open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise SettingsError(
            f"another `lab run` is writing to {folder}; wait for it, or choose another folder with "
            "--output"
        ) from None
    return file


def _now() -> str:
    """Return the time, UTC, as ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _versions(registry: Registry) -> dict[str, str]:
    """Return the versions of the packages that results may depend on."""
    found = {one.distribution: one.version for one in registry.plugins if one.status == "active"}
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return dict(sorted(found.items()))
