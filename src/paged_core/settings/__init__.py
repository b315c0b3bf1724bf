"""Settings: their schema, the layers that they are read from, and what is wrong with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paged_core.settings.schema import EngineSettings as EngineSettings
    from paged_core.settings.schema import Resolved as Resolved
    from paged_core.settings.schema import load_settings as load_settings
    from paged_core.settings.schema import settings_class as settings_class

_NAMES = ("EngineSettings", "Resolved", "load_settings", "settings_class")


def __getattr__(name: str) -> Any:
    """Import a name of :mod:`~paged_core.settings.schema` when it is asked for here."""
    if name in _NAMES:
        from paged_core.settings import schema

        return getattr(schema, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
