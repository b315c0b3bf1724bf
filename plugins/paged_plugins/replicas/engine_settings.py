"""What each of several engines is built from."""

from __future__ import annotations

import os
from typing import Any

import psutil

from paged_core.client.choice import ClientContext
from paged_core.plugins.component import ComponentSettings
from paged_core.settings.schema import EngineSettings
from paged_plugins.replicas.settings import RoutedSettings

BLOCK_EVENTS = "block_events"
"""The observer that a router wants which knows what each cache holds."""


def router_options(options: RoutedSettings, context: ClientContext) -> ComponentSettings:
    """Return the options of the router: its own, those of the setting ``router``, the default's.

    Raises:
        SettingsError: there is no such router, or an option is wrong.
    """
    if options.router is not None:
        return options.router.options("router", "replicas", context.registry, refused=())
    chosen: ComponentSettings | None = getattr(context.settings, "router", None)
    if chosen is not None:
        return chosen
    return context.registry.get("router", "prefix_affinity").settings.model_validate({})


def num_starting(options: RoutedSettings) -> int:
    """Return how many engines may start at once: here as many as there are cores for them.

    Those that wait for resources of a Ray cluster do not keep others from starting.
    """
    return options.count if options.placement == "ray" else max(2, os.cpu_count() or 1)


def engine_settings(
    settings: EngineSettings, options: RoutedSettings, number: int, *, block_events: bool
) -> EngineSettings:
    """Return the settings of one engine.

    Engines on this machine share its cores evenly, unless the settings say how many threads each
    has; those on one device share the fraction of its memory that the settings name.

    Args:
        settings: of all of them.
        number: of the engine.
        block_events: whether it is to tell what its cache holds.
    """
    changes: dict[str, Any] = {"replicas": options.model_copy(update={"count": 1})}
    devices = options.devices
    if devices:
        changes["device"] = devices[number % len(devices)]
    if options.placement == "process":
        sharing = -(-options.count // max(1, len(set(devices))))
        asked = settings.kv_cache_memory
        if isinstance(asked, float):
            changes["kv_cache_memory"] = asked / sharing
        if settings.threads is None and not os.environ.get("OMP_NUM_THREADS", "").isdigit():
            changes["threads"] = max(1, (psutil.cpu_count(logical=False) or 1) // options.count)
    observers = settings.observers
    if block_events and all(each.name != BLOCK_EVENTS for each in observers):
        registry = type(settings).registry
        assert registry is not None
        own = registry.get("observers", BLOCK_EVENTS).settings.model_validate({})
        changes["observers"] = (*observers, own)
    return settings.model_copy(update=changes)
