"""The hooks through which a package adds parts to the engine; all are called at start-up only.

A plugin is a module named by an entry point of the group ``paged_core``::

    [project.entry-points.paged_core]
    my_plugin = "my_package.plugin"

    # my_package/plugin.py
    from paged_core.plugins.component import Component
    from paged_core.plugins.hooks import hookimpl
    from my_package.settings import RoundRobinSettings

    @hookimpl
    def paged_core_components():
        yield Component("scheduler", RoundRobinSettings, "my_package.round_robin:RoundRobin")

Import nothing heavy in it: every installed plugin is imported to list what there is. Installing a
plugin changes nothing by itself: a component acts only when settings name it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from paged_core.plugins.component import Command, Component, Profile, Slot

hookspec = pluggy.HookspecMarker("paged_core")
hookimpl = pluggy.HookimplMarker("paged_core")


@hookspec
def paged_core_components() -> Iterable[Component]:  # type: ignore[empty-body]
    """Yield the choices this plugin adds to slots, its own or others'.

    One :class:`~paged_core.plugins.component.Component` each: the slot's key, a settings class with
    the options, and the factory named by a string, which is imported when settings choose it.

    A name may be taken once per slot. If two plugins claim it, settings cannot be resolved until
    one of them is blocked with ``--block-plugin``.
    """


@hookspec
def paged_core_profiles() -> Iterable[Profile]:  # type: ignore[empty-body]
    """Yield named starting points for settings.

    One :class:`~paged_core.plugins.component.Profile` each: YAML with the keys of a settings file,
    which overrides it.
    """


@hookspec
def paged_core_commands() -> Iterable[Command]:  # type: ignore[empty-body]
    """Yield commands for ``paged-core``.

    One :class:`~paged_core.plugins.component.Command` each, whose function or typer app is imported
    when it is used. A function gets the settings as options: see :mod:`paged_core.cli.options`.
    """


@hookspec
def paged_core_slots() -> Iterable[Slot]:  # type: ignore[empty-body]
    """Yield new kinds of parts.

    One :class:`~paged_core.plugins.component.Slot` each. The engine's own slots are declared
    through this hook, so a new one gets settings, listing and checks like any other.
    """
