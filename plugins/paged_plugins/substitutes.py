"""A registry with substitutes for components, which are made of the components themselves, and what
an evictor is told."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from paged_core.checked.calls import guarded
from paged_core.ids import BlockId
from paged_core.interfaces.evictor import BlockInfo, Evictor
from paged_core.interfaces.scheduler import Scheduler
from paged_core.plugins.component import Component, ComponentSettings
from paged_core.plugins.registry import Plugin, Registry

Substitute = Callable[[Any, ComponentSettings, Any], Any]
"""Called with a component that was just made, its options and its context; returns what is used
instead."""


class SubstitutingRegistry(Registry):
    """A registry of the same plugins; components of some slots are replaced as they are made.

    Args:
        substitutes: by slot.
    """

    def __init__(self, plain: Registry, substitutes: Mapping[str, Substitute]) -> None:
        super().__init__(plain.plugins)
        self.memo["substitutes"] = substitutes

    def get(self, slot: str, name: str, /) -> Component:
        component, plain = super().get(slot, name), Registry(self.plugins)
        if (substitute := self.memo["substitutes"].get(slot)) is None:
            return component

        def make(options: ComponentSettings, context: Any) -> Any:
            made = component.load()(options, context)
            plain.refuse_misfit(slot, name, made)
            return substitute(made, options, context)

        values = {each.name: getattr(component, each.name) for each in fields(component)}
        return _Replaced(**values, make=make)

    def provider(self, slot: str, name: str, /) -> Plugin:
        return Registry(self.plugins).provider(slot, name)


@dataclass(frozen=True, kw_only=True)
class _Replaced(Component):
    """A component with another factory."""

    make: Callable[..., Any]

    def load(self) -> Any:
        return self.make


def watched_scheduler(
    made: Scheduler, begin: Callable[[float], object], answers: object = None
) -> Any:
    """Return a scheduler that passes all on, after ``begin(now)`` in each step.

    Args:
        answers: of :func:`~paged_core.checked.calls.guarded`.
    """
    passing: Any = guarded(made, "scheduler", Scheduler, answers)
    schedule = passing.schedule
    passing.schedule = lambda now: (begin(now), schedule(now))[1]
    return passing


class IdleBlocks:
    """The blocks that an evictor holds, in the order in which they were added.

    Its methods are those of an evictor, called with the answer too, as by
    :func:`~paged_core.checked.calls.guarded`.
    """

    def __init__(self) -> None:
        self.blocks: dict[BlockId, BlockInfo] = {}

    def add(self, _: None, block: BlockId, info: BlockInfo) -> None:
        self.blocks[block] = info

    def remove(self, _: None, block: BlockId) -> None:
        del self.blocks[block]

    def evict(self, block: BlockId) -> None:
        self.blocks.pop(block, None)

    def evicted_by(self, evictor: Evictor) -> BlockId:
        """Return what a new evictor evicts that is told of these blocks."""
        for block, info in self.blocks.items():
            evictor.add(block, info)
        return evictor.evict()
