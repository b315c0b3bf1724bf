"""Replays a scenario again with one decision taken by another component, which shows its worth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from paged_core.errors import SettingsError
from paged_core.interfaces.evictor import SupportsDemand
from paged_core.interfaces.queue_order import SupportsQuantum, SupportsService
from paged_core.plugins.component import ComponentSettings
from paged_core.plugins.making import make_component
from paged_core.plugins.registry import Registry
from paged_core.settings.documents import parse_yaml
from paged_core.settings.layers import Entry, Origin
from paged_core.settings.schema import EngineSettings, settings_class
from paged_plugins.decisions.replay import replay
from paged_plugins.decisions.replay_run import Outcome
from paged_plugins.decisions.scenario import Scenario
from paged_plugins.substitutes import (
    IdleBlocks,
    Substitute,
    passing,
    substituted,
    watched_scheduler,
)

_DECIDES: Final = {
    "victim": ("choose",),
    "preemption": ("mode", "tokens_to_reserve"),
    "queue_order": ("key",),
    "evictor": ("evict",),
}
"""Deciding methods of the slots of which one decision can be taken otherwise."""
_REHEARSED = "belady"
_SHOWN = ("scheduled", "cached", "preempted", "swapped_out", "swapped_in", "evicted")
"""Keys of a step of a trace that say what was decided in it."""


def counterfactual(
    scenario: Scenario, registry: Registry, settings: EngineSettings, step: int, instead: str
) -> dict[str, Any]:
    """Replay a scenario twice, the second time with decisions of one step taken otherwise.

    Before and after that step the component of the settings decides, and what it remembers is of
    what was done. Another evictor is made anew and told of the idle blocks.

    Args:
        step: as in the trace.
        instead: ``SLOT=NAME``, or options in braces.

    Returns:
        Plain data, with pairs of what was and what would have been: ``decided`` in the step,
        ``measures``, and ``requests`` that end at another time, in seconds.

    Raises:
        SettingsError: the slot decides nothing in that step, or it cannot be asked so.
    """
    slot, options = _parsed(instead, registry)
    if _REHEARSED in (options.name, settings.evictor.name):
        raise SettingsError(f"--instead: {_REHEARSED} rehearses a replay; choose another")

    def run(switch: _Switch) -> tuple[list[dict[str, Any]], Outcome]:
        watched: dict[str, Substitute] = {
            "scheduler": lambda made, *_: watched_scheduler(made, switch.begin),
            slot: switch.component,
        }
        outcome = Outcome()
        trace = replay(scenario, substituted(registry, watched), outcome, settings)
        return list(trace), outcome

    first = _Switch(slot, options, registry)
    was, outcome = run(first)
    asked = {line["step"]: plan for plan, line in enumerate(was) if plan in first.asked}
    if step not in asked:
        listed = ", ".join(map(str, [*asked][:20])) + (", ..." if len(asked) > 20 else "")
        told = f"it does in {listed}" if asked else "it does in no step of this scenario"
        raise SettingsError(f"--at {step}: {slot} decides nothing in this step; {told}")
    would, other = run(_Switch(slot, options, registry, at=asked[step]))
    lines = [next(line for line in some if line["step"] == step) for some in (was, would)]
    before, after = _measures(was, outcome), _measures(would, other)
    ends = {each.id: each.finished for each in other.requests}
    pairs = {each.id: [each.finished, ends.get(each.id)] for each in outcome.requests}
    return {
        "step": step,
        "slot": slot,
        "instead": instead,
        "decided": [{key: line[key] for key in _SHOWN} for line in lines],
        "measures": {name: [value, after[name]] for name, value in before.items()},
        "requests": {id_: pair for id_, pair in pairs.items() if pair[1] not in (None, pair[0])},
    }


def _measures(trace: list[dict[str, Any]], outcome: Outcome) -> Mapping[str, float]:
    """Return what a decision may change."""

    def count(*keys: str) -> int:
        return sum(len(line[key]) for line in trace for key in keys)

    spent = [each.finished - each.arrived for each in outcome.requests]
    return {
        "steps": len(trace),
        "seconds": max((each.finished for each in outcome.requests), default=0.0),
        "mean completion, s": sum(spent) / max(1, len(spent)),
        "tokens computed": sum(sum(line["scheduled"].values()) for line in trace),
        "tokens cached": sum(sum(line["cached"].values()) for line in trace),
        "preemptions": count("preempted", "swapped_out"),
        "evictions": count("evicted"),
    }


def _parsed(instead: str, registry: Registry) -> tuple[str, ComponentSettings]:
    slot, equals, text = instead.partition("=")
    if slot not in _DECIDES or not equals:
        raise SettingsError(
            f"--instead {instead:.80}: write SLOT=NAME, with one of {', '.join(_DECIDES)}"
        )
    try:
        value, _ = parse_yaml(text)
    except ValueError as error:
        raise SettingsError(f"--instead {instead:.80}: {error}") from None
    entry = Entry((slot,), value, Origin("cli", f"--instead {instead:.80}"))
    made, _ = settings_class(registry).from_layers([[entry]])
    return slot, getattr(made, slot)


@dataclass(slots=True)
class _Switch:
    """Knows which step is planned, and lets another component decide in one of them."""

    slot: str
    options: ComponentSettings
    """Options of that component."""
    registry: Registry
    at: int | None = None
    """Counts plans from 0; ``None``: never."""
    planned: int = -1
    asked: set[int] = field(default_factory=set)
    """Plans in which the slot decided."""

    def begin(self, now: float) -> None:
        """Note that another step is planned."""
        self.planned += 1

    def component(self, made: Any, _: ComponentSettings, context: Any) -> Any:
        """Return one that decides as ``made``, or in the one step as the other."""
        names, idle = _DECIDES[self.slot], IdleBlocks()
        make = partial(make_component, self.registry, self.slot, self.options, context)
        other, start = make(), f"--instead {self.slot}={self.options.name}: "
        if isinstance(other, SupportsService | SupportsQuantum | SupportsDemand):
            raise SettingsError(
                f"{start}it decides by what it was told before, or preempts by itself; choose one "
                "that decides by what it sees"
            )
        if self.slot == "preemption" and other.may_swap and not made.may_swap:
            raise SettingsError(
                f"{start}there are no blocks on the host to swap to; choose preemption auto or "
                "swap, and replay that"
            )
        answers = idle if "evict" in names else None
        asked = passing(made, self.slot, self.registry, answers)

        def evict() -> Any:
            block = idle.evicted_by(make())
            asked.remove(block)
            return block

        for name in names:
            instead = evict if name == "evict" else getattr(other, name)
            setattr(asked, name, partial(self._ask, getattr(asked, name), instead))
        if self.slot == "queue_order":
            type(asked).stable = False  # so that the queue is sorted again in each step
        return asked

    def _ask(self, one: Any, other: Any, *args: Any) -> Any:
        self.asked.add(self.planned)
        return (other if self.planned == self.at else one)(*args)
