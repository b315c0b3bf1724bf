"""Substitutes for the components of a registry, each made of the component itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from paged_core.checked.calls import guarded
from paged_core.ids import BlockId
from paged_core.interfaces.evictor import BlockInfo, Evictor
from paged_core.interfaces.scheduler import Scheduler
from paged_core.plugins.component import Component, ComponentSettings, load
from paged_core.plugins.registry import Registry

Substitute = Callable[[Any, ComponentSettings, Any], Any]
"""Called with a component that was just made, its options and its context; returns what is used
instead."""


def substituted(plain: Registry, substitutes: Mapping[str, Substitute]) -> Registry:
    """Return a registry of the same plugins, whose components are replaced as they are made.

    Args:
        substitutes: by slot; those of other slots are left as they are.
    """

    def replaced(component: Component) -> Component:
        if (substitute := substitutes.get(component.slot)) is None:
            return component
        values = {each.name: getattr(component, each.name) for each in fields(component)}
        return _Replaced(**values, plain=plain, substitute=substitute)

    return Registry(
        tuple(
            replace(plugin, components=tuple(map(replaced, plugin.components)))
            for plugin in plain.plugins
        )
    )


@dataclass(frozen=True, kw_only=True)
class _Replaced(Component):
    """A component with another factory."""

    plain: Registry
    substitute: Substitute

    def load(self) -> Any:
        factory = super().load()

        def make(options: ComponentSettings, context: Any) -> Any:
            made = factory(options, context)
            self.plain.refuse_misfit(self.slot, self.name, made)
            return self.substitute(made, options, context)

        return make


def passing(made: Any, slot: str, registry: Registry, answers: object = None) -> Any:
    """Return an object that passes all on to a component of a slot.

    Args:
        answers: of :func:`~paged_core.checked.calls.guarded`.
    """
    interface = load(registry.slots[slot].interface, f"interface of slot {slot!r}")
    return guarded(made, slot, interface, answers)


def watched_scheduler(
    made: Scheduler, begin: Callable[[float], object], answers: object = None
) -> Any:
    """Return a scheduler that passes all on, after ``begin(now)`` in each step.

    Args:
        answers: of :func:`~paged_core.checked.calls.guarded`.
    """
    watched: Any = guarded(made, "scheduler", Scheduler, answers)
    schedule = watched.schedule
    watched.schedule = lambda now: (begin(now), schedule(now))[1]
    return watched


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
