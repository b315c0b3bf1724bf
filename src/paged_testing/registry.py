"""Registries for tests: the installed components, and some that only the test has."""

from __future__ import annotations

from paged_core.registry import Registry


def registry_with(*parts: object) -> Registry:
    """Return a registry of everything installed, with ``parts`` added.

    Args:
        parts: records (:class:`~paged_core.component.Component` and the like) or modules with
            hooks, as an entry point would name them.

    Raises:
        PluginError: a part cannot be used; the message says why.
    """
    found = Registry.discover()
    return found.extended(*parts, plugin="under_test") if parts else found


def first_party(registry: Registry, *wanted: tuple[str, str]) -> Registry:
    """Return the plugins of a registry that come with the core, and those with ``wanted`` parts.

    Args:
        wanted: slots and names of components.
    """
    core = next(plugin for plugin in registry.plugins if plugin.name == "core")
    return Registry(
        tuple(
            plugin
            for plugin in registry.plugins
            if plugin.distribution == core.distribution
            or any((part.slot, part.name) in wanted for part in plugin.components)
        )
    )
