"""One run of a study, and the digest of all that it depends on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from pydantic import BaseModel

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


_PACKAGES = ("paged_core", "paged_policies", "paged_backends", "paged_plugins")
_SUFFIXES = {".py", ".cpp", ".cu", ".cuh", ".h", ".yaml", ".json"}


def digest(value: Any) -> str:
    """Return a digest of plain data (what JSON can say), 16 hexadecimal digits."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def code_digest(registry: Registry) -> str:
    """Return a digest of the sources of this engine, and of the versions of other plugins."""
    others = [[one.name, one.distribution, one.version, one.status] for one in registry.plugins]
    return digest([others, *_sources()])


def files_in(value: Any) -> Iterator[Path]:
    """Yield the files that settings or a workload name: they are read when it is run."""
    if isinstance(value, Path) and value.is_file():
        yield value
    elif isinstance(value, BaseModel):
        yield from files_in(dict(value))
    elif isinstance(value, Mapping):
        yield from files_in(tuple(value.values()))
    elif isinstance(value, list | tuple):
        for each in value:
            yield from files_in(each)


def file_digest(path: Path) -> str:
    """Return a digest of the content of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def _sources() -> Iterator[list[str]]:
    for package in _PACKAGES:
        try:
            file = import_module(package).__file__
        except ModuleNotFoundError:  # an installation may leave one out
            continue
        if file is None:
            continue
        folder = Path(file).parent
        for path in sorted(folder.rglob("*")):
            if path.suffix in _SUFFIXES and path.is_file():
                name = f"{package}/{path.relative_to(folder).as_posix()}"
                yield [name, file_digest(path)]
