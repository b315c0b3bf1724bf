"""What is installed: plugins found through entry points, and the parts they bring."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal, Protocol, TypeVar

import pluggy

from paged_core import hookspecs
from paged_core.component import Command, Component, Profile, Slot
from paged_core.config.suggest import did_you_mean
from paged_core.errors import PluginError

GROUP = "paged_core"


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
        """Return the plugin with a reason not to use it."""
        return replace(self, status="broken", reason=reason)


@dataclass(frozen=True)
class Registry:
    """All plugins, and the parts that the active ones bring. Immutable, and can be pickled: another
    process that has the same packages gets the same parts, without looking for plugins itself."""

    plugins: tuple[Plugin, ...]

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the records alone: what is derived from them is made again where it is used."""
        return Registry, (self.plugins,)

    @classmethod
    def discover(
        cls, *, block: Collection[str] = (), entries: Iterable[EntryPoint] | None = None
    ) -> Registry:
        """Import every installed plugin, except those in ``block``, and collect what it yields.

        A plugin that cannot be used is kept with the reason, and the others load all the same.
        Reads package metadata, but neither the environment nor settings files.

        Args:
            block: names of plugins to leave alone; nothing of them is imported.
            entries: look at these entry points instead of the installed ones.

        Raises:
            PluginError: ``block`` names a plugin that is not installed.
        """
        found = list(entry_points(group=GROUP) if entries is None else entries)
        names = {entry.name for entry in found}
        for name in block:
            if name not in names:
                raise PluginError(
                    f"cannot block {name!r}: no plugin is called that{did_you_mean(name, names)}"
                )
        plugins: dict[str, list[Plugin]] = defaultdict(list)
        for entry in sorted(found, key=lambda entry: entry.name):
            namesakes = plugins[entry.name]
            namesakes.append(_load(entry, namesakes, blocked=entry.name in block))
        return cls(_settle(plugin for namesakes in plugins.values() for plugin in namesakes))

    def extended(self, *parts: object, plugin: str = "extra") -> Registry:
        """Return a registry with more parts, for tests and for engines embedded in a program.

        Args:
            parts: records (:class:`Component`, :class:`Slot`, :class:`Profile`, :class:`Command`),
                or modules and other objects with hooks, as an entry point would name.
            plugin: the name under which the parts are listed.

        Raises:
            PluginError: the parts cannot be used; the message says why.
        """
        new = Plugin(plugin, "this program", "-")
        for part in parts:
            kind = next((kind for kind, record in _RECORDS.items() if isinstance(part, record)), "")
            brought = {kind: (part,)} if kind else _call_hooks(part)
            more: Any = {kind: getattr(new, kind) + brought[kind] for kind in brought}
            new = replace(new, **more)
        settled = _settle((*self.plugins, new))
        if settled[-1].status == "broken":
            raise PluginError(f"{settled[-1]} is broken: {settled[-1].reason}")
        return Registry(settled)

    @cached_property
    def memo(self) -> dict[str, Any]:
        """What others derive from a registry and need not derive twice, under names of theirs."""
        return {}

    @cached_property
    def slots(self) -> Mapping[str, Slot]:
        """Every kind of part, by settings key."""
        return _slots(self.plugins)

    @cached_property
    def profiles(self) -> Mapping[str, Profile]:
        """Named starting points for settings."""
        return _by_name(profile for plugin in self._active for profile in plugin.profiles)

    @cached_property
    def commands(self) -> Mapping[str, Command]:
        """Commands that plugins add to the command line."""
        return _by_name(command for plugin in self._active for command in plugin.commands)

    def of(self, slot: str, /) -> Mapping[str, Component]:
        """Return the components of a slot by name. ``auto`` of a slot that offers it is none.

        Raises:
            PluginError: there is no such slot.
        """
        if slot not in self.slots:
            raise self.error(f"no slot is called {slot!r}{did_you_mean(slot, self.slots)}")
        return self._by_slot.get(slot, {})

    def get(self, slot: str, name: str, /) -> Component:
        """Return one component.

        Raises:
            PluginError: no plugin, or more than one, provides it.
        """
        found = self.of(slot)
        if name not in found:
            noun = self.slots[slot].noun
            raise self.error(f"no {noun} is called {name!r}{did_you_mean(name, found)}")
        self.refuse_conflict(f"{slot} {name!r}")
        return found[name]

    def provider(self, slot: str, name: str, /) -> Plugin:
        """Return the plugin that brings a component.

        Raises:
            PluginError: no plugin, or more than one, provides it.
        """
        component = self.get(slot, name)
        return next(plugin for plugin in self._active if component in plugin.components)

    def candidates(self, slot: str, /) -> list[Component]:
        """Return the components of a slot as ``auto`` tries them: by rank, highest first."""
        return sorted(self.of(slot).values(), key=lambda part: (-part.rank, part.name))

    @cached_property
    def conflicts(self) -> Mapping[str, str]:
        """What several active plugins claim, such as ``scheduler 'x'``, with a message each."""
        claims: dict[str, list[Plugin]] = defaultdict(list)
        for plugin in self._active:
            for component in plugin.components:
                claims[f"{component.slot} {component.name!r}"].append(plugin)
            for slot in plugin.slots:
                claims[f"slot {slot.key!r}"].append(plugin)
            for profile in plugin.profiles:
                claims[f"profile {profile.name!r}"].append(plugin)
            for command in plugin.commands:
                claims[f"command {command.name!r}"].append(plugin)
        return {
            what: f"{what} comes from both {one} and {other}; use --block-plugin {one.name}"
            f" or --block-plugin {other.name}"
            for what, (one, other, *_) in (pair for pair in claims.items() if len(pair[1]) > 1)
        }

    def refuse_conflicts(self) -> None:
        """Do nothing if every slot and every component has one provider.

        Profiles and commands are not needed before somebody names them; see
        :meth:`refuse_conflict`.

        Raises:
            PluginError: a name has two; the message names both and the ways out.
        """
        for what in self.conflicts:
            if not what.startswith(("profile ", "command ")):
                self.refuse_conflict(what)

    def refuse_conflict(self, what: str) -> None:
        """Do nothing if ``what``, a key of :attr:`conflicts`, has one provider.

        Raises:
            PluginError: it has two; the message names both and the ways out.
        """
        if message := self.conflicts.get(what):
            raise PluginError(message)

    @property
    def notes(self) -> tuple[str, ...]:
        """A line per plugin left out, for messages about something that is not there."""
        return tuple(
            f"note: {plugin} is {plugin.status}{f': {plugin.reason}' if plugin.reason else ''}"
            for plugin in self.plugins
            if plugin.status != "active"
        )

    def error(self, message: str) -> PluginError:
        """Return an error about something that is not there, mentioning plugins left out."""
        return PluginError("\n".join((message, *self.notes)))

    @cached_property
    def _by_slot(self) -> Mapping[str, Mapping[str, Component]]:
        found: dict[str, dict[str, Component]] = defaultdict(dict)
        for plugin in self._active:
            for component in plugin.components:
                found[component.slot].setdefault(component.name, component)
        return found

    @property
    def _active(self) -> Iterator[Plugin]:
        return _active(self.plugins)


class _Named(Protocol):
    @property
    def name(self) -> str: ...


N = TypeVar("N", bound=_Named)

_RECORDS: Mapping[str, type] = {
    "slots": Slot,
    "components": Component,
    "profiles": Profile,
    "commands": Command,
}


def _load(entry: EntryPoint, namesakes: list[Plugin], *, blocked: bool) -> Plugin:
    plugin = Plugin(
        entry.name,
        entry.dist.name if entry.dist else "unknown",
        entry.dist.version if entry.dist else "unknown",
    )
    if blocked:
        return replace(plugin, status="blocked")
    if namesakes:
        return plugin.broken(f"its name is taken by {namesakes[0]}; uninstall one of them")
    try:
        brought: Any = _call_hooks(entry.load())
    except (Exception, SystemExit) as error:  # noqa: BLE001 - one bad plugin must not take the others down
        mine = isinstance(error, PluginError)
        return plugin.broken(str(error) if mine else f"{type(error).__name__}: {error}")
    return replace(plugin, **brought)


def _call_hooks(plugin: object) -> dict[str, tuple[Any, ...]]:
    """Return what one plugin yields, by kind; each has a manager to itself, so none affects others.

    Raises:
        PluginError: it misspells a hook, has none, or yields something else than asked for.
    """
    manager = pluggy.PluginManager(GROUP)
    manager.add_hookspecs(hookspecs)
    manager.register(plugin)
    hooks = [f"{GROUP}_{kind}" for kind in _RECORDS]
    implemented = manager.get_hookcallers(plugin) or []
    for caller in implemented:
        if not caller.has_spec() and not all(i.optionalhook for i in caller.get_hookimpls()):
            raise PluginError(
                f"no hook is called {caller.name!r}{did_you_mean(caller.name, hooks)}"
            )
    if not implemented:
        raise PluginError(f"it implements no hook; mark {hooks[1]} and the like with @hookimpl")
    brought = {}
    for kind, record in _RECORDS.items():
        results = getattr(manager.hook, f"{GROUP}_{kind}")()
        brought[kind] = tuple(item for result in results for item in result)
        for item in brought[kind]:
            if not isinstance(item, record):
                raise PluginError(
                    f"{GROUP}_{kind} yields {item!r}, which is not a {record.__name__}"
                )
    return brought


def _settle(plugins: Iterable[Plugin]) -> tuple[Plugin, ...]:
    """Mark as broken what fits no slot. A slot goes with its plugin: look again until it holds."""
    settled = tuple(plugins)
    while True:
        slots = _slots(settled)
        checked = tuple(
            plugin.broken(reason)
            if plugin.status == "active" and (reason := _misfit(plugin, slots))
            else plugin
            for plugin in settled
        )
        if checked == settled:
            return settled
        settled = checked


def _misfit(plugin: Plugin, slots: Mapping[str, Slot]) -> str | None:
    for component in plugin.components:
        slot = slots.get(component.slot)
        if slot is None:
            return (
                f"{component.name!r} is for a slot that nothing declares, {component.slot!r}"
                f"{did_you_mean(component.slot, slots)}"
            )
        if component.interface_version != slot.version:
            return f"built for interface {component.interface_version}, this is {slot.version}"
    return None


def _active(plugins: Iterable[Plugin]) -> Iterator[Plugin]:
    return (plugin for plugin in plugins if plugin.status == "active")


def _slots(plugins: Iterable[Plugin]) -> dict[str, Slot]:
    slots: dict[str, Slot] = {}
    for plugin in _active(plugins):
        for slot in plugin.slots:
            slots.setdefault(slot.key, slot)
    return slots


def _by_name(records: Iterable[N]) -> dict[str, N]:
    found: dict[str, N] = {}
    for record in records:
        found.setdefault(record.name, record)
    return found
