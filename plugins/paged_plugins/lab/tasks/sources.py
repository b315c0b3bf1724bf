"""Sources that the result of a run depends on: those of the engine, and of each component that its
settings choose, whichever distribution brings it.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from paged_core.plugins.component import Component, Slot
from paged_core.plugins.registry import Registry
from paged_core.settings.schema import EngineSettings
from paged_plugins.lab.tasks.packages import Package, changed_file, digest, listed_in

_ENGINE = ("paged_core", "paged_plugins")
"""Packages that every run uses, whatever its settings choose."""
_OURS = frozenset({*_ENGINE, "paged_policies", "paged_backends", "paged_testing"})
"""Packages of the engine, which know nothing of the slots of others."""
_NAME = re.compile(r"([A-Za-z_]\w*)(?:\.\w+)*(?::\w+)?")
"""A text that may name a module, or something in one."""
_AUTO = "auto"
"""The name of a choice that is made on the machine that runs it: of any component of the slot."""


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


class Sources:
    """Sources of the engine and of the components of a registry; each file is read once."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        core = next((one for one in registry.plugins if one.name == "core"), None)
        self._ours = core and core.distribution
        self._known: dict[str, tuple[Collection[str], Collection[str]]] = {}
        """Packages, and slots without use, by the settings of runs."""
        self._packages: dict[str, Package | None] = {}
        self._brought: dict[str, set[str]] = {}
        """Names of packages, by their distribution and those of them that come first."""
        self._lists: dict[str, frozenset[str]] = {}
        """Names of the packages of a distribution."""
        self._digests: dict[frozenset[str], str] = {}

    def of(self, settings: EngineSettings) -> str:
        """Return a digest of the sources of a run with these settings."""
        names = frozenset(self._used(settings))
        if names not in self._digests:
            self._digests[names] = digest([self._digest_of(name) for name in sorted(names)])
        return self._digests[names]

    def changed(self, settings: EngineSettings) -> Path | None:
        """Return a source of a run with these settings that has changed since it was read here; of
        the engine itself none, as it is imported when a study begins.
        """
        packages = filter(None, map(self._package, {*self._used(settings)} - _OURS))
        return changed_file({path: each for one in packages for path, each in one.contents.items()})

    def revisions(self, arms: Iterable[EngineSettings]) -> dict[str, str]:
        """Return the revision of each package that runs with these settings use, as far as it is in
        a checkout; packages of one checkout are named by the first.
        """
        found: dict[str, str] = {}
        for name in sorted({name for settings in arms for name in self._used(settings)}):
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

    def unasked(self, settings: EngineSettings) -> Collection[str]:
        """Return the slots whose components these runs do not have: of packages that nothing of
        theirs imports or names, and that settings leave at their defaults.
        """
        return self._read(settings)[1]

    def _used(self, settings: EngineSettings) -> Collection[str]:
        """Return the names of the packages that runs with some settings use."""
        return self._read(settings)[0]

    def _read(self, settings: EngineSettings) -> tuple[Collection[str], Collection[str]]:
        """Return the packages that runs with some settings use, and the slots that they do not."""
        text = settings.model_dump_json()
        if text not in self._known:
            default = {
                slot.key: slot
                for plugin in self._registry.plugins
                if plugin.distribution != self._ours
                for slot in plugin.slots
                if self._is_default(slot, dict(settings)[slot.key])
            }
            asked, names = {*self._registry.slots} - {*default}, set[str]()
            while True:
                names = {*_ENGINE}.union(
                    *(self._of_component(*each) for each in self._chosen(settings, asked))
                )
                new = {key for key in default if key not in asked and self._asks(names, key)}
                new |= ({*default} - asked) & {*_texts([dict(settings)[key] for key in asked])}
                if not new:
                    break
                asked |= new
            self._known[text] = names, {*default} - asked
        return self._known[text]

    def _is_default(self, slot: Slot, value: Any) -> bool:
        names = slot.default if isinstance(slot.default, tuple) else [slot.default]
        made = [
            name and self._registry.get(slot.key, name).settings.model_validate({})
            for name in names
        ]
        return made == (list(value) if isinstance(value, list | tuple) else [value])

    def _asks(self, names: Collection[str], key: str) -> bool:
        """Return whether packages, but for ours, name a slot, or import what it is made of."""
        word = re.compile(rb"\b%s\b" % key.encode())
        interface = self._registry.slots[key].interface.partition(":")[0].partition(".")[0]
        others = filter(None, map(self._package, {*names} - _OURS))
        return interface in names or any(
            interface in each.imported or any(each.has(word)) for each in others
        )

    def _chosen(
        self, settings: EngineSettings, slots: Collection[str]
    ) -> Iterator[tuple[Component, Collection[str]]]:
        """Yield the components of some slots that settings name, in the options of others too, and
        the texts among these options.
        """
        for key, value in settings:
            if key == "observers" or key not in slots:
                continue
            known = self._registry.of(key)
            for each in value if isinstance(value, list | tuple) else [value]:
                options = dict(each) if isinstance(each, BaseModel) else {}
                name = options.pop("name", None)
                words = {*_texts(options)}
                own = [*known.values()] if _AUTO in {name, *words} else [known.get(name)]
                nested = (self._registry.of(slot).get(word) for slot in slots for word in words)
                yield from ((one, words) for one in filter(None, (*own, *nested)))

    def _of_component(self, component: Component, words: Collection[str] = ()) -> set[str]:
        """Return the names of the packages that a component is made of: those that its record
        names, and what these import from their own distribution; so are the modules that texts
        among its options name.
        """
        plugin = next(one for one in self._registry.plugins if component in one.components)
        slot = self._registry.slots[component.slot]
        paths = (component.factory, component.check, component.details, slot.interface)
        first = {path.partition(":")[0].partition(".")[0] for path in paths if path}
        first.add(component.settings.__module__.partition(".")[0])
        listed = self._listed(plugin.distribution)
        first.update(name for name in map(_module_in, words) if self._is_own(name, listed))
        key = " ".join((plugin.distribution, *sorted(first)))
        if key not in self._brought:
            self._brought[key] = self._with_imported(first, listed)
        return self._brought[key]

    def _listed(self, distribution: str) -> frozenset[str]:
        if distribution not in self._lists:
            self._lists[distribution] = frozenset(listed_in(distribution) - {""})
        return self._lists[distribution]

    def _is_own(self, name: str, listed: Collection[str]) -> bool:
        """Return whether a name is that of a package of a distribution, which lists some, or of one
        that is not installed.
        """
        package = self._package(name) if name else None
        return package is not None and (
            name in listed or not (package.is_installed or package.is_namespace)
        )

    def _with_imported(self, names: set[str], listed: frozenset[str]) -> set[str]:
        """Return packages with those that they import: of their own distribution, which lists some,
        and from checkouts, of which none is installed for others. One that may compute names
        imports all of these, of a checkout those in its folder.
        """
        found, waiting = set[str](), list(names)
        while waiting:
            name = waiting.pop()
            package = self._package(name)
            if name in found or package is None:
                continue
            found.add(name)
            imported = package.imported
            if name not in _OURS and package.computes_names:
                imported |= listed if package.is_installed else package.beside
            waiting += (each for each in imported - found if self._is_own(each, listed))
        return found

    def _package(self, name: str) -> Package | None:
        if name not in self._packages:
            self._packages[name] = Package.found(name)
        return self._packages[name]

    def _digest_of(self, name: str) -> list[str]:
        package = self._package(name)
        return [name, package.digest if package else ""]


def _module_in(text: str) -> str:
    """Return the package of which a text may name a module; none of Python's own."""
    named = _NAME.fullmatch(text)
    return named[1] if named and named[1] not in sys.stdlib_module_names else ""


def leaves(value: Any) -> Iterator[Any]:
    """Yield what a part of settings or a workload holds, however deep."""
    if isinstance(value, BaseModel):
        value = dict(value)
    if isinstance(value, Mapping):
        value = [*value.values()]
    if not isinstance(value, list | tuple):
        yield value
        return
    for each in value:
        yield from leaves(each)


def _texts(value: Any) -> Iterator[str]:
    """Yield the texts among options."""
    return (each for each in leaves(value) if isinstance(each, str))
