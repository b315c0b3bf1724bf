"""Names of the components that errors come from, in the words of the settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from paged_core.errors import PagedCoreError, PluginError, error_place, error_text
from paged_core.plugins.component import ComponentSettings


class FaultNames:
    """Says which component raised, by the mark of the innermost call of one.

    Args:
        chosen: by slot, the name of the component that the settings choose.
    """

    def __init__(self, chosen: Mapping[str, str]) -> None:
        self._chosen = chosen

    @classmethod
    def of(cls, settings: Iterable[tuple[str, object]]) -> FaultNames:
        """Return those of an engine with these settings, by key."""
        parts = ((slot, part) for slot, part in settings if isinstance(part, ComponentSettings))
        return cls({slot: part.name for slot, part in parts})

    def describe(self, error: BaseException, called: str) -> str:
        """Name the component whose code raised, what it raised, and where.

        Args:
            called: the slot of the component that was called, if the error has no mark.
        """
        if not isinstance(error, Exception):
            place = "" if isinstance(error, KeyboardInterrupt) else error_place(error)
            return type(error).__name__ + place  # Ctrl-C is the fault of none
        slot, kind = getattr(error, "blamed", None) or (called, "")
        name = self._chosen.get(slot, "")
        name = f"{slot} {kind if kind and name in ('', 'auto') else repr(name)}"
        if isinstance(error, PluginError):
            return f"{name}: {error}{error_place(error)}"
        is_told = isinstance(error, PagedCoreError) or error_place(error)
        place = "" if is_told else error_place(error, innermost=True)
        return f"{name} raised {error_text(error)}{place}"
