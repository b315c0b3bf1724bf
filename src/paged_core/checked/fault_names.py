"""The component that an error comes from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from traceback import walk_tb

from paged_core.errors import PagedCoreError, PluginError, error_place, error_text
from paged_core.interfaces.allocator import BlockAllocator
from paged_core.interfaces.attention import AttentionBackend
from paged_core.interfaces.evictor import Evictor
from paged_core.interfaces.executor import Executor
from paged_core.interfaces.observer import Observer
from paged_core.interfaces.preemption import Preemption
from paged_core.interfaces.queue_order import QueueOrder
from paged_core.interfaces.runner import Runner
from paged_core.interfaces.scheduler import Scheduler
from paged_core.interfaces.victim import Victim
from paged_core.plugins.component import ComponentSettings

_SLOTS: Mapping[type, str] = {
    BlockAllocator: "block_allocator",
    Evictor: "evictor",
    QueueOrder: "queue_order",
    Scheduler: "scheduler",
    Victim: "victim",
    Preemption: "preemption",
    AttentionBackend: "attention",
    Runner: "runner",
    Executor: "executor",
    Observer: "observers",
}


class FaultNames:
    """Says which component raised, in the words of the settings.

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
        """Name the component whose code raised, the innermost one, what it raised, and where.

        Args:
            called: the slot that was called, for errors that do not tell: of code without frames.
        """
        if not isinstance(error, Exception):
            place = "" if isinstance(error, KeyboardInterrupt) else error_place(error)
            return type(error).__name__ + place  # Ctrl-C is the fault of none
        if _compares_keys(error):
            order = f"queue_order {self._chosen.get('queue_order', '')!r}"
            return f"{order} returned keys that cannot be compared: {error}"
        name = _raiser(error, self._chosen) or f"{called} {self._chosen.get(called, '')!r}"
        if isinstance(error, PluginError):
            return f"{name}: {error}{error_place(error)}"
        is_told = isinstance(error, PagedCoreError) or error_place(error)
        place = "" if is_told else error_place(error, innermost=True)
        return f"{name} raised {error_text(error)}{place}"


def _compares_keys(error: Exception) -> bool:
    """Whether code of ours that asks an order compared what does not compare."""
    unlike = isinstance(error, TypeError) and "not supported between instances" in str(error)
    if not unlike or error.__traceback__ is None:
        return False
    *_, (frame, _) = walk_tb(error.__traceback__)
    is_ours = str(frame.f_globals.get("__name__")).startswith(("paged_core.", "paged_policies."))
    return is_ours and hasattr(frame.f_locals.get("self"), "_order")


def _raiser(error: BaseException, chosen: Mapping[str, str]) -> str | None:
    """Name the component that the innermost of all frames belongs to."""
    for frame, _ in reversed(list(walk_tb(error.__traceback__))):
        owner = frame.f_locals.get("self")
        for interface, slot in _SLOTS.items():
            if isinstance(owner, interface):
                name = chosen.get(slot, "auto")
                kind = type(getattr(owner, "inner", owner))
                return f"{slot} {kind.__qualname__ if name == 'auto' else name!r}"
    return None
