"""Settings of each of several engines."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import psutil

from paged_core.client.choice import ClientContext
from paged_core.errors import SettingsError
from paged_core.plugins.component import ComponentSettings
from paged_core.processes import ray_child
from paged_core.settings.schema import EngineSettings
from paged_plugins.replicas.settings import RoutedSettings
from paged_plugins.routing.observer_files import with_own_files

_GPUS = Path("/proc/driver/nvidia/gpus")
"""Is there if the device `auto` can be a GPU."""
BLOCK_EVENTS = "block_events"
"""The observer that a router wants which knows what each cache holds."""


def unavailable_reason(options: RoutedSettings) -> str | None:
    """Return why engines cannot be placed as the options say."""
    return ray_child.unavailable_reason() if options.placement == "ray" else None


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


def _devices(settings: EngineSettings, options: RoutedSettings) -> list[str]:
    """Return the device of each engine."""
    named = options.devices or (settings.device,)
    return [named[number % len(named)] for number in range(options.count)]


def refuse_caches_without_room(settings: EngineSettings, options: RoutedSettings) -> None:
    """Refuse bytes for caches that do not fit into this machine's memory together.

    The engines of a GPU find that out by themselves: memory that one has there is free no more.

    Raises:
        SettingsError: they do not.
    """
    asked = settings.kv_cache_memory
    if options.placement != "process" or not isinstance(asked, int):
        return
    on_cpu = ("cpu",) if _GPUS.exists() else ("cpu", "auto")
    sharing = sum(device in on_cpu for device in _devices(settings, options))
    free = psutil.virtual_memory().available
    if sharing > 1 and asked * sharing > free:
        raise SettingsError(
            f"kv_cache_memory: {sharing} engines (replicas.count) with {asked / 2**30:.2f} GiB "
            f"each take {asked * sharing / 2**30:.2f} GiB, and {free / 2**30:.2f} GiB are free on "
            f"the CPU; set it to {free // sharing // 2**20}MiB or less, or lower replicas.count"
        )


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
    devices = _devices(settings, options)
    changes["device"] = devices[number]
    if options.placement == "process":
        asked = settings.kv_cache_memory
        if isinstance(asked, float):
            changes["kv_cache_memory"] = asked / devices.count(devices[number])
        if settings.threads is None and not os.environ.get("OMP_NUM_THREADS", "").isdigit():
            changes["threads"] = max(1, (psutil.cpu_count(logical=False) or 1) // options.count)
    if options.count > 1:
        settings = with_own_files(settings, number)
    observers = settings.observers
    if block_events and all(each.name != BLOCK_EVENTS for each in observers):
        registry = type(settings).registry
        assert registry is not None
        own = registry.get("observers", BLOCK_EVENTS).settings.model_validate({})
        changes["observers"] = (*observers, own)
    return settings.model_copy(update=changes)
