"""Digests by which results are found again: of plain data, and of the code that ran."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from paged_core.registry import Registry

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
