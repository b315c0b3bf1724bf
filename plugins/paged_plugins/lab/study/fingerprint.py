"""Digests by which results are found again: of plain data, and of the code that ran."""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any

from paged_core.registry import Registry

_PACKAGES = ("paged_core", "paged_policies", "paged_backends", "paged_plugins")
_SUFFIXES = {".py", ".cpp", ".cu", ".cuh", ".h", ".yaml", ".json"}


def digest(value: Any) -> str:
    """Return a digest of plain data (what JSON can say), 16 hexadecimal digits."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return sha256(text.encode()).hexdigest()[:16]


def code_digest(registry: Registry) -> str:
    """Return a digest of the sources of this engine, and of the versions of other plugins."""
    others = [[one.name, one.distribution, one.version, one.status] for one in registry.plugins]
    return digest([others, *_sources()])


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
                yield [name, sha256(path.read_bytes()).hexdigest()]
