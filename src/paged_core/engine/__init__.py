"""The engine: its step loop, the planner that schedulers ask, the driver, and their wiring."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paged_core.engine.engine import Engine as Engine


def __getattr__(name: str) -> Any:
    """Import :class:`~paged_core.engine.engine.Engine` when it is asked for here."""
    if name == "Engine":
        from paged_core.engine.engine import Engine

        return Engine
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
