"""``paged-core plugins``: what is installed, and the options of one of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from pydantic import PydanticUserError

from paged_core.cli.options import AsJson, SettingsArgs, type_name
from paged_core.cli.output import echo, print_json, print_table
from paged_core.errors import PluginError, did_you_mean
from paged_core.plugins.component import AutoSettings, Component, ComponentSettings, Slot
from paged_core.plugins.registry import Plugin, Registry


@dataclass(frozen=True)
class Choice:
    """Something that may be chosen for a slot, usable or not."""

    slot: str
    plugin: Plugin
    settings: type[ComponentSettings]
    summary: str
    is_default: bool
    component: Component | None
    """``None``: it is the slot's ``auto``."""

    @property
    def name(self) -> str:
        return str(self.settings.model_fields["name"].default)

    @property
    def key(self) -> str:
        return f"{self.slot}.{self.name}"


def command(
    given: SettingsArgs,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]", help="A plugin, a slot, slot.name, a unique name, or a profile."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List plugins, the components and the profiles they bring, or show the options of one."""
    registry = given.registry
    found, profiles = list(choices(registry)), list(_profiles(registry))
    plugins: Sequence[Plugin] = registry.plugins
    if name is not None:
        profiles = [row for row in profiles if name in (row["name"], row["plugin"])]
        is_profile = name in registry.profiles
        found = [] if is_profile else _named(name.replace("-", "_"), name, found, registry)
        owners = {name, *(row["plugin"] for row in profiles), *(one.plugin.name for one in found)}
        plugins = [plugin for plugin in registry.plugins if plugin.name in owners]
    if as_json:
        listed = {"plugins": list(map(_plugin, plugins)), "components": list(map(_entry, found))}
        print_json(listed | {"profiles": profiles})
        return
    _print_plugins(plugins)
    if name is None:
        _print_choices(found)
    for choice in found if name is not None else ():
        _print_options(registry, choice)
    if name is not None and name in registry.profiles:
        echo(f"\n{registry.profiles[name].read().rstrip()}")
    elif profiles:
        _print_profiles(profiles)
    for message in registry.conflicts.values() if name is None else ():
        echo(f"warning: {message}", err=True)


def choices(registry: Registry) -> Iterator[Choice]:
    """Return all components, those of broken plugins too, in the order of their slots."""
    slots = {slot.key: (slot, plugin) for plugin in registry.plugins for slot in plugin.slots}
    for slot, plugin in slots.values():
        if slot.auto:
            text = "the best of the others that can serve here"
            yield Choice(slot.key, plugin, AutoSettings, text, _is_default("auto", slot), None)
        yield from _components(registry, slot.key, slot)
    for key in {c.slot for plugin in registry.plugins for c in plugin.components} - slots.keys():
        yield from _components(registry, key, None)


def _components(registry: Registry, key: str, slot: Slot | None) -> Iterator[Choice]:
    for plugin in registry.plugins:
        for one in plugin.components:
            if one.slot == key:
                default = slot is not None and _is_default(one.name, slot)
                yield Choice(key, plugin, one.settings, one.summary, default, one)


def _is_default(name: str, slot: Slot) -> bool:
    return name in slot.default if isinstance(slot.default, tuple) else name == slot.default


def _named(name: str, typed: str, found: list[Choice], registry: Registry) -> list[Choice]:
    """Return what a name means: a plugin, a slot, ``slot.name``, or a component's own name."""
    if typed in {plugin.name for plugin in registry.plugins}:
        return [choice for choice in found if choice.plugin.name == typed]
    if name in registry.slots:
        return [choice for choice in found if choice.slot == name]
    if exact := [choice for choice in found if choice.key == name]:
        return exact
    matching = [choice for choice in found if choice.name == name]
    if keys := sorted({choice.key for choice in matching}):
        if len(keys) > 1:
            raise PluginError(f"{typed!r} is ambiguous; write one of {', '.join(keys)}")
        return matching
    known = {choice.key for choice in found} | {choice.name for choice in found}
    known |= (
        registry.slots.keys()
        | registry.profiles.keys()
        | {plugin.name for plugin in registry.plugins}
    )
    raise registry.error(f"nothing installed is called {typed!r}{did_you_mean(typed, known)}")


def _profiles(registry: Registry) -> Iterator[dict[str, str]]:
    for plugin in registry.plugins:
        for profile in plugin.profiles if plugin.status == "active" else ():
            yield {"name": profile.name, "plugin": plugin.name, "summary": profile.summary}


def _plugin(plugin: Plugin) -> dict[str, Any]:
    keys = ("name", "distribution", "version", "status", "reason")
    return {key: getattr(plugin, key) for key in keys}


def _entry(choice: Choice) -> dict[str, Any]:
    return {
        "slot": choice.slot,
        "name": choice.name,
        "plugin": choice.plugin.name,
        "status": choice.plugin.status,
        "default": choice.is_default,
        "summary": choice.summary,
        "options": _schema(choice.settings),
    }


def _schema(settings: type[ComponentSettings]) -> dict[str, Any]:
    try:
        return settings.model_json_schema()
    except PydanticUserError as error:  # an option of a type that has no schema
        return {"description": f"no schema: {error.message}"}


def _print_plugins(plugins: Sequence[Plugin]) -> None:
    rows = [
        (p.name, p.distribution, p.version, f"{p.status}: {p.reason}" if p.reason else p.status)
        for p in plugins
    ]
    print_table("Plugins", ("plugin", "distribution", "version", "status"), rows)


def _print_choices(found: list[Choice]) -> None:
    rows = [
        (
            choice.slot,
            f"{choice.name} (default)" if choice.is_default else choice.name,
            choice.plugin.name,
            choice.plugin.status,
            choice.summary,
        )
        for choice in found
    ]
    print_table("Components", ("slot", "name", "plugin", "status", "summary"), rows)


def _print_profiles(profiles: list[dict[str, str]]) -> None:
    rows = [list(row.values()) for row in profiles]
    print_table("Profiles (--profile NAME)", ("name", "plugin", "summary"), rows)


def _print_options(registry: Registry, choice: Choice) -> None:
    echo(f"\n{choice.key}: {choice.summary}")
    if choice.component:
        echo(f"available: {_availability(registry, choice.component, choice.plugin)}")
    rows = option_rows(choice.settings)
    if rows:
        print_table("", ("option", "type", "default", "description"), rows)
    else:
        echo("It has no options.")


def option_rows(settings: type[ComponentSettings]) -> list[tuple[str, str, Any, str]]:
    """Return name, type, default and description of each option of a component."""
    return [
        (
            option,
            type_name(field.annotation),
            "required" if field.is_required() else field.get_default(call_default_factory=True),
            field.description or "",
        )
        for option, field in settings.model_fields.items()
        if option != "name"
    ]


def _availability(registry: Registry, component: Component, plugin: Plugin) -> str:
    if plugin.status != "active":
        return f"no: {plugin} is {plugin.status}: {plugin.reason}"
    reason = registry.unavailable_reason(component)
    return f"no: {reason}" if reason else "yes"
