"""Counts of decisions, and of the faults of components, after which vLLM's own rule decides."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any

from paged_core.errors import PluginError, error_text
from paged_plugins.decision_count import DecisionCount

_log = logging.getLogger("vllm.paged_core")


@dataclass(slots=True)
class Count(DecisionCount):
    """Decisions of one slot, compared with those of vLLM's own rule."""

    name: str = ""
    """The component that decides."""
    faults: int = 0
    """Decisions, or news of one, in which the component raised."""


@dataclass(slots=True)
class Tally:
    """Counts by slot, and what is done about a component that raises.

    Args:
        strict: raise, which ends vLLM's engine.
    """

    strict: bool = False
    queue_order: Count = field(default_factory=Count)
    victim: Count = field(default_factory=Count)
    evictor: Count = field(default_factory=Count)
    _told: set[str] = field(default_factory=set)

    def fault(self, slot: str, component: object, error: Exception) -> None:
        """Count that a component raised, and log it the first time; where it is said in the text.

        Raises:
            PluginError: faults end the engine.
        """
        slot, kind = getattr(error, "blamed", None) or (slot, type(component).__qualname__)
        count: Count = getattr(self, slot)
        count.faults += 1
        told = f"{slot} {count.name!r} ({kind}) raised {error_text(error)}"
        if self.strict:
            raise PluginError(told) from error
        if slot not in self._told:
            self._told.add(slot)
            _log.error(
                "%s; vLLM's own rule decides instead, as often as this happens "
                "(further times are counted, not logged)",
                told,
            )

    def values(self) -> dict[str, dict[str, Any]]:
        """Return the counts as plain values, by slot."""
        return {
            slot: {
                key: getattr(getattr(self, slot), key)
                for key in ("name", "decisions", "choices", "differed", "faults")
            }
            for slot in ("queue_order", "victim", "evictor")
        }
