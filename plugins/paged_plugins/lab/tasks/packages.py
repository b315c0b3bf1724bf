"""Packages as the files that they are made of, and digests of files."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Any

_IMPORT = re.compile(
    r"(?:^|[;:])[ \t]*(?:from[ \t]+([\w.]+)[ \t]+import\b|import[ \t]+([\w., \t]+))"
    r"|\b(?:import_module|__import__|files)\(\s*[\"']([\w.]+)",
    re.MULTILINE,
)
"""Statements that import modules, and functions that are given the name of one."""
_COMPUTED = re.compile(
    rb"\b(?:import_module|__import__|resolve_name|load_module|run_module|run_path|exec"
    rb"|spec_from_file_location|SourceFileLoader|iter_modules|walk_packages)\b"
)
"""Words of modules that may import others by names that they compute."""
_LONGEST_PATH = 200
"""Characters of a text in a module that may name a file beside it."""
_NO_SOURCES = frozenset(
    {
        *(".git", ".hg", ".svn", ".jj", ".venv", ".tox", ".nox", ".idea", ".vscode", ".DS_Store"),
        *("__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis"),
        *(".cache", ".ipynb_checkpoints"),
    }
)
"""Names of what tools keep beside sources."""
_SWAP = (".swp", ".swo")
"""Ends of the names of what an editor keeps of an open file."""
_INSTALLED = {"site-packages", "dist-packages"}


def digest(value: Any) -> str:
    """Return a digest of plain data (what JSON can say), 16 hexadecimal digits."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def file_digest(path: Path) -> str:
    """Return a digest of the content of a file, which is read again where it was written since."""
    while True:
        found = _digest_at(path, stamp := stamp_of(path))
        if stamp_of(path) == stamp:
            return found


def stamp_of(path: Path) -> tuple[int, ...]:
    """Return what a file has another of once it is written, whatever is written; OSError."""
    told = path.stat()
    return told.st_mtime_ns, told.st_ctime_ns, told.st_size, told.st_ino


@cache
def _digest_at(path: Path, stamp: tuple[int, ...]) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def changed_file(contents: Mapping[Path, str]) -> Path | None:
    """Return the first of some files that does not have the content of its digest."""
    return next((path for path, known in contents.items() if known_digest(path) != known), None)


def known_digest(path: Path) -> str:
    """Return the digest of a file; none of one that is gone or cannot be read."""
    try:
        return file_digest(path)
    except OSError:
        return ""


@dataclass(frozen=True)
class Package:
    """A package that is imported by its name alone, or a module; its files, read once."""

    name: str
    places: Sequence[Path]
    """Its folders, or its file."""

    @classmethod
    def found(cls, name: str) -> Package | None:
        """Return the package of a name, which is not imported; ``None``: there is none here."""
        try:
            spec = find_spec(name)
        except (ImportError, ValueError):
            return None
        if spec is None:
            return None
        if spec.submodule_search_locations is not None:
            return cls(name, [Path(place) for place in spec.submodule_search_locations])
        return cls(name, [Path(spec.origin)]) if spec.has_location and spec.origin else None

    @property
    def is_namespace(self) -> bool:
        """Return whether it is a folder of any kind: no module says that it is a package."""
        return all(each.is_dir() and not (each / "__init__.py").exists() for each in self.places)

    @property
    def is_installed(self) -> bool:
        """Return whether it is where installers put packages, and not in a checkout."""
        return not _INSTALLED.isdisjoint(self.places[0].resolve().parent.parts)

    @cached_property
    def files(self) -> Mapping[str, Path]:
        """Its files by name, without those of tools."""
        return dict(sorted(self._files()))

    def _files(self) -> Iterator[tuple[str, Path]]:
        for place in self.places:
            if place.is_file():
                yield place.name, place
                for text in _texts_in(place):  # a module has data where it says so
                    beside = place.parent / text
                    if text.strip("./") and beside.is_relative_to(place.parent):
                        yield from _files_under(beside, text)
            else:
                yield from _files_under(place, self.name)

    @cached_property
    def digest(self) -> str:
        """A digest of the names and the contents of its files."""
        return digest([[name, self.contents[path]] for name, path in self.files.items()])

    @cached_property
    def contents(self) -> Mapping[Path, str]:
        """Digests of its files."""
        return {path: known_digest(path) for path in self.files.values()}

    @cached_property
    def imported(self) -> frozenset[str]:
        """The names of other packages that its modules import, wherever they do."""
        found = set[str]()
        for path in self.files.values():
            if path.suffix == ".py":
                lines = path.read_text("utf-8", "replace").splitlines()
                text = "\n".join(each for each in lines if "import" in each or "files(" in each)
                for one, several, called in _IMPORT.findall(text):
                    listed = (each.split() for each in several.split(","))
                    found.update((one, called), (words[0] for words in listed if words))
        names = {name.partition(".")[0] for name in found}
        return frozenset(names - {self.name, ""} - sys.stdlib_module_names)

    @cached_property
    def computes_names(self) -> bool:
        """Say whether its modules may import others by names that they compute."""
        return any(self.has(_COMPUTED))

    @cached_property
    def beside(self) -> frozenset[str]:
        """The names of modules and packages in its folder."""
        found = (each for place in self.places for each in place.parent.iterdir())
        is_python = (
            each for each in found if each.suffix == ".py" or (each / "__init__.py").exists()
        )
        return frozenset(each.stem for each in is_python)

    def has(self, word: re.Pattern[bytes]) -> Iterator[Path]:
        """Yield its modules that have a word."""
        modules = (path for path in self.files.values() if path.suffix == ".py")
        return (path for path in modules if word.search(path.read_bytes()))


def _files_under(place: Path, name: str) -> Iterator[tuple[str, Path]]:
    """Yield a file, or those of a folder and of those that links in it lead to, not tools' own."""
    if place.is_file():
        yield name, place
    seen = set[str]()
    for folder, inner, files in os.walk(place, followlinks=True):
        is_new = (real := os.path.realpath(folder)) not in seen
        seen.add(real)
        inner[:] = [each for each in inner if is_new and each not in _NO_SOURCES]
        within = Path(folder).relative_to(place).as_posix()
        for each in files if is_new else ():
            path = Path(folder, each)
            if each not in _NO_SOURCES and not each.endswith(_SWAP) and path.is_file():
                yield f"{name}/{within}/{each}", path


def _texts_in(module: Path) -> set[str]:
    """Return the short texts in a module."""
    if module.suffix != ".py":
        return set()
    texts = (getattr(node, "value", None) for node in ast.walk(ast.parse(module.read_bytes())))
    return {
        text
        for text in texts
        if isinstance(text, str) and len(text) <= _LONGEST_PATH and text.isprintable()
    }


def listed_in(name: str) -> set[str]:
    """Return the packages that a distribution has installed; none for an editable one."""
    try:
        files = distribution(name).files or ()
    except (PackageNotFoundError, ValueError):
        return set()
    return {path.parts[0].partition(".")[0] for path in files}
