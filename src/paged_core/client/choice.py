"""Which client serves settings: that of one engine, or what a plugin makes of several."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from paged_core.client.engine_client import EngineClient
from paged_core.engine.contexts import Context, Maker
from paged_core.plugins.making import make_component
from paged_core.plugins.registry import Registry
from paged_core.settings.schema import EngineSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientContext(Context):
    """Parts of a component that makes the client of several engines.

    Options of such a component say how many: ``num_engines``.
    """

    settings: EngineSettings
    registry: Registry
    single: Callable[[], EngineClient]
    """Makes the client of one engine, which runs where the caller wants it to."""
    hang_seconds: float = 10.0
    """Seconds that an engine in another process may be silent, beyond what its step may take."""
    log_level: str | None = None
    """Level of the logs of engines in other processes."""


def make_client(context: ClientContext) -> EngineClient:
    """Return the client that the settings ask for.

    Raises:
        SettingsError, PluginError: it cannot be made here.
    """
    for slot, options in context.settings:
        if hasattr(options, "num_engines"):
            maker = Maker(context.settings, context.registry)
            context = replace(context, maker=maker)
            client: EngineClient = make_component(context.registry, slot, options, context)
            return client
    return context.single()
