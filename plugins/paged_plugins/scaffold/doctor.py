"""``paged-core doctor``: what this machine can run, and why not the rest."""

from __future__ import annotations

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import typer

from paged_core.cli.options import AsJson, SettingsArgs
from paged_core.cli.output import print_table
from paged_core.errors import error_text
from paged_core.plugins.component import Component, load
from paged_core.plugins.registry import Registry
from paged_core.settings.environment import cache_dir
from paged_plugins import machine
from paged_plugins.command_options import JsonFile, report
from paged_plugins.progress import Advance, progress


def command(
    given: SettingsArgs,
    as_json: AsJson = False,
    output: JsonFile = None,
) -> None:
    """Look at this machine and say which components can serve on it. Takes seconds.

    Of a component that cannot, it says why, and which command would change that, if one would.
    """
    registry = given.registry
    installed = [each for slot in registry.slots for each in registry.of(slot).values()]
    with (
        progress(len(installed) + 1, "looking") as advance,
        ThreadPoolExecutor(1) as beside,  # which waits for other programs
    ):
        host = beside.submit(machine.describe_host)
        components = [_component(registry, one, advance) for one in installed]
        described = host.result() | {"torch": machine.describe_torch()}
        advance()
    found = {
        "machine": described | {"cache_dir": str(cache_dir(given.environ))},
        "components": components,
        "broken_plugins": [
            {key: getattr(plugin, key) for key in ("name", "distribution", "version", "reason")}
            for plugin in registry.plugins
            if plugin.status == "broken"
        ],
        "conflicts": list(registry.conflicts.values()),
    }
    report(found, output, as_json, _print)


def _print(found: dict[str, Any]) -> None:
    print_table("Machine", ("what", "value"), _flat(found["machine"]))
    print_table(
        "Components",
        ("slot", "name", "can serve here"),
        [(c["slot"], c["name"], _answer(c["reason"], c["details"])) for c in found["components"]],
    )
    _print_remedies(found["components"])
    for plugin in found["broken_plugins"]:
        message = f"plugin {plugin['name']!r} ({plugin['distribution']} {plugin['version']})"
        typer.echo(f"warning: {message} is broken: {plugin['reason']}", err=True)
    for message in found["conflicts"]:
        typer.echo(f"warning: {message}", err=True)


def _component(registry: Registry, component: Component, advance: Advance) -> dict[str, Any]:
    reason = registry.unavailable_reason(component)
    found = {
        "slot": component.slot,
        "name": component.name,
        "reason": reason,
        "commands": _commands(reason),
        "details": _details(component) if reason is None else "",
    }
    advance()
    return found


def _details(component: Component) -> str:
    """Say how a component would serve here, as far as it tells; never raises."""
    if component.details is None:
        return ""
    try:
        return str(load(component.details, f"details of {component.slot} {component.name!r}")())
    except (Exception, SystemExit) as error:  # noqa: BLE001 - one bad plugin must not take the others down
        return f"its details failed: {error_text(error)}"


def _commands(reason: str | None) -> list[str]:
    """Return the commands that a reason names: they are in backticks, and have several words."""
    return [text for text in re.findall(r"`([^`]+)`", reason or "") if " " in text]


def _print_remedies(components: Sequence[dict[str, Any]]) -> None:
    """Print what would make more components serve: each command, and for which it is."""
    names: dict[str, list[str]] = {}
    for component in components:
        for command in component["commands"]:
            names.setdefault(command, []).append(f"{component['slot']} {component['name']}")
    if names:
        rows = [(command, ", ".join(served)) for command, served in names.items()]
        print_table("To make more of them serve", ("command", "for"), rows)


def _answer(reason: str | None, details: str) -> str:
    if reason is not None:
        return f"no: {reason}"
    return f"yes: {details}" if details else "yes"


def _flat(machine: dict[str, Any]) -> list[tuple[str, object]]:
    rows: list[tuple[str, object]] = []
    for key, value in machine.items():
        if isinstance(value, dict):
            rows += [(f"{key}.{name}", _shown(own)) for name, own in value.items()]
        else:
            rows.append((key, value))
    return rows


def _shown(value: object) -> object:
    """Return a value for the table; devices by a line each."""
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "; ".join(
            f"{one['name']}, compute capability {one['compute_capability']}, "
            f"{one['memory_bytes'] / (1 << 30):.0f} GiB, {one['multiprocessors']} multiprocessors"
            for one in value
        )
    return value
