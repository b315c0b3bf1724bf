"""Sources that the result of a run depends on: those of the engine, and of each component that its
settings choose, whichever distribution brings it.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from paged_core.plugins.component import Component
from paged_core.plugins.registry import Registry
from paged_core.settings.schema import EngineSettings

_ENGINE = ("paged_core", "paged_plugins")
"""Packages that every run uses, whatever its settings choose."""
_IMPORT = re.compile(
    r"(?:^|[;:])[ \t]*(?:from[ \t]+([\w.]+)[ \t]+import\b|import[ \t]+([\w., \t]+))"
    r"|\b(?:import_module|__import__|files)\(\s*[\"']([\w.]+)",
    re.MULTILINE,
)
"""Statements that import modules, and functions that are given the name of one."""
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
_AUTO = "auto"
"""The name of a choice that is made on the machine that runs it: of any component of the slot."""


def digest(value: Any) -> str:
    """Return a digest of plain data (what JSON can say), 16 hexadecimal digits."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def file_digest(path: Path) -> str:
    """Return a digest of the content of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def git_revision(place: Path) -> str | None:
    """Return the revision of the checkout that tracks a folder or a file, ``+changes`` at its end
    if files differ, or new ones are there; ``None``: none does.
    """
    folder, name = (place, ".") if place.is_dir() else (place.parent, place.name)
    if not _git(folder, "ls-files", "--", name):
        return None
    revision = _git(folder, "rev-parse", "HEAD")
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    new = _git(folder, "ls-files", "--others", "--exclude-standard", "--", name)
    return f"{revision}+changes" if changed or new else revision


def _git(folder: Path, *arguments: str) -> str | None:
    command = ["git", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


@dataclass(frozen=True)
class _Package:
    """A package that is imported by its name alone, or a module; its files, read once."""

    name: str
    places: Sequence[Path]
    """Its folders, or its file."""

    @classmethod
    def found(cls, name: str) -> _Package | None:
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
        return digest([[name, file_digest(path)] for name, path in self.files.items()])

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


def _listed(name: str) -> set[str]:
    """Return the packages that a distribution has installed; none for an editable one."""
    try:
        files = distribution(name).files or ()
    except (PackageNotFoundError, ValueError):
        return set()
    return {path.parts[0].partition(".")[0] for path in files}


class Sources:
    """Sources of the engine and of the components of a registry; each file is read once."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._packages: dict[str, _Package | None] = {}
        self._brought: dict[str, set[str]] = {}
        """Names of packages, by their distribution and those of them that come first."""
        self._digests: dict[frozenset[str], str] = {}

    def of(self, settings: EngineSettings) -> str:
        """Return a digest of the sources of a run with these settings."""
        names = frozenset(self._used([settings]))
        if names not in self._digests:
            self._digests[names] = digest([self._digest_of(name) for name in sorted(names)])
        return self._digests[names]

    def revisions(self, arms: Iterable[EngineSettings]) -> dict[str, str]:
        """Return the revision of each package that runs with these settings use, as far as it is in
        a checkout; packages of one checkout are named by the first.
        """
        found: dict[str, str] = {}
        for name in sorted(self._used(arms)):
            package = self._package(name)
            revision = git_revision(package.places[0]) if package else None
            if revision and revision not in found.values():
                found[name] = revision
        return found

    def speaks_of(self, word: str, component: Component) -> bool:
        """Return whether a file has a word that a component is made of, but for those of the core.

        Packages of plugins that it imports count, too, ours among them; and what cannot be found.
        """
        components = [each for plugin in self._registry.plugins for each in plugin.components]
        brought = {each.factory.partition(":")[0].partition(".")[0] for each in components}
        found, waiting = {"paged_core"}, self._of_component(component)
        while waiting := waiting - found:
            found.add(name := min(waiting))
            package = self._package(name)
            if package is None or any(
                word.encode() in path.read_bytes() for path in package.files.values()
            ):
                return True
            waiting |= package.imported & brought
        return len(found) == 1

    def _used(self, arms: Iterable[EngineSettings]) -> set[str]:
        """Return the names of the packages that runs with some settings use."""
        names = set(_ENGINE)
        for settings in arms:
            for component in self._chosen(settings):
                names |= self._of_component(component)
        return names

    def _chosen(self, settings: EngineSettings) -> Iterator[Component]:
        """Yield the components that settings name, in the options of others too."""
        slots = self._registry.slots
        for key, value in settings:
            if key == "observers" or key not in slots:
                continue
            words = {*_texts(value)}
            for slot in slots:
                known = self._registry.of(slot)
                if slot == key and _AUTO in words:
                    yield from known.values()
                yield from (known[word] for word in words if word in known)

    def _of_component(self, component: Component) -> set[str]:
        """Return the names of the packages that a component is made of: those that its record
        names, and what these import from their own distribution.
        """
        plugin = next(one for one in self._registry.plugins if component in one.components)
        slot = self._registry.slots[component.slot]
        paths = (component.factory, component.check, component.details, slot.interface)
        first = {path.partition(":")[0].partition(".")[0] for path in paths if path}
        first.add(component.settings.__module__.partition(".")[0])
        key = " ".join((plugin.distribution, *sorted(first)))
        if key not in self._brought:
            self._brought[key] = self._with_imported(first, _listed(plugin.distribution))
        return self._brought[key]

    def _with_imported(self, names: set[str], listed: set[str]) -> set[str]:
        """Return packages with those that they import: of their own distribution, which lists some,
        and from checkouts, of which none is installed for others.
        """
        found, waiting = set[str](), list(names)
        while waiting:
            name = waiting.pop()
            package = self._package(name)
            if name in found or package is None:
                continue
            found.add(name)
            for each in package.imported - found:
                other = self._package(each)
                if other is not None and (each in listed or not other.is_installed):
                    waiting.append(each)
        return found

    def _package(self, name: str) -> _Package | None:
        if name not in self._packages:
            self._packages[name] = _Package.found(name)
        return self._packages[name]

    def _digest_of(self, name: str) -> list[str]:
        package = self._package(name)
        return [name, package.digest if package else ""]


def _texts(value: Any) -> Iterator[str]:
    """Yield the texts among options."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, BaseModel):
        yield from _texts(dict(value))
    elif isinstance(value, Mapping):
        yield from _texts([*value.values()])
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _texts(each)
