"""The plugins that are installed, found through entry points, and the records they yield."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal

import pluggy

from paged_core.errors import PluginError, did_you_mean, error_text
from paged_core.plugins import hooks
from paged_core.plugins.component import Command, Component, Profile, Slot, load
from paged_core.plugins.fit import misfit

GROUP = "paged_core"
_OWN = ("paged_core.", "paged_plugins.")
"""Packages whose interfaces have a page."""


@dataclass(frozen=True, slots=True)
class Plugin:
    """One plugin, whether it can be used, and the records it yielded."""

    name: str
    distribution: str
    version: str
    status: Literal["active", "blocked", "broken"] = "active"
    reason: str | None = None
    """Why it is broken."""
    slots: tuple[Slot, ...] = ()
    components: tuple[Component, ...] = ()
    profiles: tuple[Profile, ...] = ()
    commands: tuple[Command, ...] = ()

    def __str__(self) -> str:
        return f"plugin {self.name!r} ({self.distribution} {self.version})"

    def broken(self, reason: str) -> Plugin:
        """Return the plugin with the reason why it cannot be used."""
        return replace(self, status="broken", reason=reason)

    def claims(self) -> Iterator[str]:
        """Yield each name that only one plugin may bring, such as ``scheduler 'x'``."""
        yield from (f"{component.slot} {component.name!r}" for component in self.components)
        yield from (f"slot {slot.key!r}" for slot in self.slots)
        yield from (f"profile {profile.name!r}" for profile in self.profiles)
        yield from (f"command {command.name!r}" for command in self.commands)


@dataclass(frozen=True)
class Registry:
    """All plugins, and the records that the active ones yield. Immutable.

    A process with the same packages that unpickles it discovers no plugins itself.
    """

    plugins: tuple[Plugin, ...]

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the records alone; what is derived from them is made again."""
        return Registry, (self.plugins,)

    @classmethod
    def discover(cls, *, block: Collection[str] = ()) -> Registry:
        """Import every installed plugin, except those in ``block``, and collect what it yields.

        A plugin that cannot be used is kept with the reason, and the others are loaded. Neither
        the environment nor settings files are read.

        Raises:
            PluginError: ``block`` names a plugin that is not installed.
        """
        entries = sorted(entry_points(group=GROUP), key=lambda entry: entry.name)
        names = {entry.name for entry in entries}
        for name in block:
            if name not in names:
                known = did_you_mean(name, names)
                raise PluginError(f"cannot block {name!r}: no plugin is called that{known}")
        plugins: list[Plugin] = []
        for entry in entries:
            namesake = next((plugin for plugin in plugins if plugin.name == entry.name), None)
            plugins.append(_load(entry, namesake, blocked=entry.name in block))
        return cls(_all_checked(tuple(plugins)))

    def extended(self, *parts: object, plugin: str = "extra") -> Registry:
        """Return a registry with one more plugin, for tests and for programs with their own parts.

        ``parts`` are records (:class:`Component`, :class:`Slot`, :class:`Profile`,
        :class:`Command`), or modules and other objects with hooks, as an entry point would name.

        Raises:
            PluginError: the parts cannot be used; the message says why.
        """
        new = Plugin(plugin, "this program", "-")
        for part in parts:
            kind = next((kind for kind, record in _RECORDS.items() if isinstance(part, record)), "")
            brought = {kind: (part,)} if kind else _call_hooks(part)
            more: Any = {kind: getattr(new, kind) + brought[kind] for kind in brought}
            new = replace(new, **more)
        checked = _all_checked((*self.plugins, new))
        if checked[-1].status == "broken":
            raise PluginError(f"{checked[-1]} is broken: {checked[-1].reason}")
        return Registry(checked)

    @cached_property
    def memo(self) -> dict[str, Any]:
        """Values derived from a registry once and kept with it, by name."""
        return {}

    @cached_property
    def slots(self) -> Mapping[str, Slot]:
        """Slots by settings key."""
        return _by_name((slot for plugin in self._active for slot in plugin.slots), "key")

    @cached_property
    def profiles(self) -> Mapping[str, Profile]:
        """Profiles by name."""
        return _by_name(profile for plugin in self._active for profile in plugin.profiles)

    @cached_property
    def commands(self) -> Mapping[str, Command]:
        """Commands of plugins by name."""
        return _by_name(command for plugin in self._active for command in plugin.commands)

    def of(self, slot: str, /) -> Mapping[str, Component]:
        """Return a slot's components by name, without ``auto``; PluginError if no such slot."""
        if slot not in self.slots:
            raise self.error(f"no slot is called {slot!r}{did_you_mean(slot, self.slots)}")
        return self._components[slot]

    @cached_property
    def _components(self) -> Mapping[str, Mapping[str, Component]]:
        """Components of each slot by name."""
        parts = [part for plugin in self._active for part in plugin.components]
        return {slot: _by_name(part for part in parts if part.slot == slot) for slot in self.slots}

    def get(self, slot: str, name: str, /) -> Component:
        """Return one component; PluginError if no plugin, or more than one, provides it."""
        found = self.of(slot)
        if name not in found:
            noun = self.slots[slot].noun
            raise self.error(f"no {noun} is called {name!r}{did_you_mean(name, found)}")
        self.refuse_conflict(f"{slot} {name!r}")
        return found[name]

    def provider(self, slot: str, name: str, /) -> Plugin:
        """Return the plugin that brings a component; PluginError as for :meth:`get`."""
        component = self.get(slot, name)
        return next(plugin for plugin in self._active if component in plugin.components)

    def refuse_misfit(self, slot: str, name: str, made: object, /, path: str = "") -> None:
        """Raise PluginError, with the remedy, if a method does not fit the interface of its slot.

        Args:
            made: the component, its class, or what it has made.
            path: of the interface, if it is not that of the slot.
        """
        path = path or self.slots[slot].interface
        interface = load(path, f"interface of slot {slot!r}")
        if problem := isinstance(interface, type) and misfit(made, interface):
            page = f" (docs/interfaces/{slot}.md)" if path.startswith(_OWN) else ""
            raise PluginError(
                f"{slot} {name!r}, of {self.provider(slot, name)}, cannot be used: {problem}; "
                f"adapt it to {path}{page}, or choose another {self.slots[slot].noun}"
            )

    def unavailable_reason(self, component: Component, /) -> str | None:
        """Return why a component cannot serve here, or ``None``; it is imported, not built.

        Beside :meth:`Component.unavailable_reason`, a class is compared with its interface; what a
        function makes shows only when it is made.
        """
        if reason := component.unavailable_reason():
            return reason
        try:
            if isinstance(made := component.load(), type):
                self.refuse_misfit(component.slot, component.name, made)
        except PluginError as error:
            return str(error)
        return None

    def candidates(self, slot: str, /) -> list[Component]:
        """Return the components of a slot as ``auto`` tries them: by rank, highest first."""
        ranked = [(part.rank, part) for part in self.of(slot).values() if part.rank is not None]
        return [part for _, part in sorted(ranked, key=lambda pair: (-pair[0], pair[1].name))]

    @cached_property
    def conflicts(self) -> Mapping[str, str]:
        """Names that several active plugins claim, with a message each; see `Plugin.claims`."""
        claims: dict[str, list[Plugin]] = defaultdict(list)
        for plugin in self._active:
            for what in plugin.claims():
                claims[what].append(plugin)
        return {
            what: f"{what} comes from both {one} and {other}; use --block-plugin {one.name}"
            f" or --block-plugin {other.name}"
            for what, (one, other, *_) in (pair for pair in claims.items() if len(pair[1]) > 1)
        }

    def refuse_conflict(self, what: str) -> None:
        """Raise PluginError, with the remedy, if ``what`` is a key of :attr:`conflicts`."""
        if message := self.conflicts.get(what):
            raise PluginError(message)

    @property
    def notes(self) -> tuple[str, ...]:
        """A line per plugin left out, for messages about a name that is not found."""
        return tuple(
            f"note: {plugin} is {plugin.status}{f': {plugin.reason}' if plugin.reason else ''}"
            for plugin in self.plugins
            if plugin.status != "active"
        )

    def error(self, message: str) -> PluginError:
        """Return an error about a name that is not found, with a line per plugin left out."""
        return PluginError("\n".join((message, *self.notes)))

    @property
    def _active(self) -> Iterator[Plugin]:
        return (plugin for plugin in self.plugins if plugin.status == "active")


_RECORDS = {"slots": Slot, "components": Component, "profiles": Profile, "commands": Command}


def _load(entry: EntryPoint, namesake: Plugin | None, *, blocked: bool) -> Plugin:
    owner = (entry.dist.name, entry.dist.version) if entry.dist else ("unknown", "unknown")
    plugin = Plugin(entry.name, *owner)
    if blocked:
        return replace(plugin, status="blocked")
    if namesake:
        return plugin.broken(f"its name is taken by {namesake}; uninstall one of them")
    try:
        brought: Any = _call_hooks(entry.load())
    except (Exception, SystemExit) as error:  # noqa: BLE001 - one bad plugin must not take the others down
        mine = isinstance(error, PluginError)
        return plugin.broken(str(error) if mine else error_text(error))
    return replace(plugin, **brought)


def _call_hooks(plugin: object) -> dict[str, tuple[Any, ...]]:
    """Return what one plugin yields, by kind; PluginError if a hook is wrong, or none is there."""
    manager = pluggy.PluginManager(GROUP)  # its own: a mistake in a hook breaks one plugin
    manager.add_hookspecs(hooks)
    manager.register(plugin)
    names = [f"{GROUP}_{kind}" for kind in _RECORDS]
    implemented = manager.get_hookcallers(plugin) or []
    for caller in implemented:
        if not caller.has_spec() and not all(i.optionalhook for i in caller.get_hookimpls()):
            known = did_you_mean(caller.name, names)
            raise PluginError(f"no hook is called {caller.name!r}{known}")
    if not implemented:
        raise PluginError(f"it implements no hook; mark {names[1]} and the like with @hookimpl")
    brought = {}
    for kind, record in _RECORDS.items():
        hook = f"{GROUP}_{kind}"
        brought[kind] = tuple(item for result in getattr(manager.hook, hook)() for item in result)
        for item in brought[kind]:
            if not isinstance(item, record):
                raise PluginError(f"{hook} yields {item!r}, which is not a {record.__name__}")
    return brought


def _all_checked(plugins: tuple[Plugin, ...]) -> tuple[Plugin, ...]:
    """Mark as broken plugins whose records do not fit; a broken one brings no slot."""
    registry = Registry(plugins)
    blocked = any(plugin.status == "blocked" for plugin in plugins)
    checked = tuple(_checked(plugin, registry, blocked=blocked) for plugin in plugins)
    return checked if checked == plugins else _all_checked(checked)


def _checked(plugin: Plugin, registry: Registry, *, blocked: bool) -> Plugin:
    if plugin.status != "active":
        return plugin
    slots, missing = registry.slots, ""
    for part in plugin.components:
        slot = slots.get(part.slot)
        if slot is None:
            slot_name = f"{part.slot!r}{did_you_mean(part.slot, slots)}"
            missing = f"{part.name!r} is for a slot that nothing declares, {slot_name}"
        elif part.interface_version != slot.version:
            found = part.interface_version
            return plugin.broken(f"built for interface {found}, this is {slot.version}")
    for slot in plugin.slots:
        if slot.interface.startswith(_OWN):
            continue  # nothing works without it; settings say what is missing
        names = (*registry.of(slot.key), *["auto"] * slot.auto)
        for name in (slot.default,) if isinstance(slot.default, str) else slot.default or ():
            if name not in names:
                missing = (
                    f"slot {slot.key!r} has no component {name!r}, its default; correct it, or "
                    f"use --block-plugin {plugin.name}{did_you_mean(name, names)}"
                )
    if not missing:
        return plugin
    status: Any = "blocked" if blocked else "broken"  # what brings it may be blocked
    return replace(plugin, status=status, reason=missing)


def _by_name(records: Iterable[Any], name: str = "name") -> dict[str, Any]:
    """Return records by an attribute; the first of several with one name is kept."""
    found: dict[str, Any] = {}
    for record in records:
        found.setdefault(getattr(record, name), record)
    return found
