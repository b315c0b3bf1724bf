"""Replays a scenario again with one decision taken by another component, which shows its worth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from pydantic import ValidationError

from paged_core.checked.calls import guarded
from paged_core.errors import SettingsError
from paged_core.interfaces.evictor import Evictor, SupportsDemand
from paged_core.interfaces.preemption import Preemption
from paged_core.interfaces.queue_order import QueueOrder, SupportsQuantum, SupportsService
from paged_core.interfaces.victim import Victim
from paged_core.plugins.component import ComponentSettings
from paged_core.plugins.making import make_component
from paged_core.plugins.registry import Registry
from paged_core.settings.documents import parse_yaml
from paged_core.settings.schema import EngineSettings
from paged_plugins.decisions.replay import replay
from paged_plugins.decisions.replay_run import Outcome
from paged_plugins.decisions.scenario import Scenario
from paged_plugins.substitutes import (
    IdleBlocks,
    Substitute,
    SubstitutingRegistry,
    watched_scheduler,
)

_DECIDES: Final = {
    "victim": (Victim, ("choose",)),
    "preemption": (Preemption, ("mode", "tokens_to_reserve")),
    "queue_order": (QueueOrder, ("key",)),
    "evictor": (Evictor, ("evict",)),
}
"""Interface and deciding methods of the slots of which one decision can be taken otherwise."""
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
            slot: partial(_switching, switch, registry, slot),
        }
        outcome = Outcome()
        trace = replay(scenario, SubstitutingRegistry(registry, watched), outcome, settings)
        return list(trace), outcome

    switch = _Switch(options)
    trace, outcome = run(switch)
    steps = [line["step"] for line in trace]
    asked = [each for plan, each in enumerate(steps) if plan in switch.asked]
    if step not in asked:
        listed = ", ".join(map(str, asked[:20])) + (", ..." if len(asked) > 20 else "")
        told = f"it does in {listed}" if asked else "it does in no step of this scenario"
        raise SettingsError(f"--at {step}: {slot} decides nothing in this step; {told}")
    other_trace, other = run(_Switch(options, at=steps.index(step)))
    ends = {each.id: each.finished for each in other.requests}
    moved = {
        each.id: [each.finished, ends[each.id]]
        for each in outcome.requests
        if ends.get(each.id, each.finished) != each.finished
    }
    lines = [next(line for line in some if line["step"] == step) for some in (trace, other_trace)]
    was, would = _measures(trace, outcome), _measures(other_trace, other)
    return {
        "step": step,
        "slot": slot,
        "instead": instead,
        "decided": [{key: line[key] for key in _SHOWN} for line in lines],
        "measures": {name: [value, would[name]] for name, value in was.items()},
        "requests": moved,
    }


def _measures(trace: list[dict[str, Any]], outcome: Outcome) -> Mapping[str, float]:
    """Return what a decision may change."""
    spent = [each.finished - each.arrived for each in outcome.requests]
    moved = (len(line["preempted"]) + len(line["swapped_out"]) for line in trace)
    return {
        "steps": len(trace),
        "seconds": max((each.finished for each in outcome.requests), default=0.0),
        "mean completion, s": sum(spent) / max(1, len(spent)),
        "tokens computed": sum(sum(line["scheduled"].values()) for line in trace),
        "tokens cached": sum(sum(line["cached"].values()) for line in trace),
        "preemptions": sum(moved),
        "evictions": sum(len(line["evicted"]) for line in trace),
    }


@dataclass(slots=True)
class _Switch:
    """Knows which step is planned, and whether another component is to decide in it."""

    options: ComponentSettings
    """Options of that component."""
    at: int | None = None
    """Counts plans from 0; ``None``: never."""
    planned: int = -1
    asked: set[int] = field(default_factory=set)
    """Plans in which the slot decided."""

    def begin(self, now: float) -> None:
        """Note that another step is planned."""
        self.planned += 1

    def ask(self, one: Any, other: Any, *args: Any) -> Any:
        """Call the method of the component, or in the one step that of the other."""
        self.asked.add(self.planned)
        return (other if self.planned == self.at else one)(*args)


def _parsed(instead: str, registry: Registry) -> tuple[str, ComponentSettings]:
    slot, equals, text = instead.partition("=")
    start = f"--instead {instead:.80}: "
    if slot not in _DECIDES or not equals:
        raise SettingsError(f"{start}write SLOT=NAME, with one of {', '.join(_DECIDES)}")
    try:
        value, _ = parse_yaml(text)
        table = value if isinstance(value, dict) else {"name": str(value)}
        return slot, registry.get(slot, str(table.get("name"))).settings.model_validate(table)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        where = ".".join(map(str, problem["loc"]))
        raise SettingsError(f"{start}{where}: {problem['msg']}") from None
    except ValueError as error:
        raise SettingsError(f"{start}{error}") from None


def _switching(
    switch: _Switch, registry: Registry, slot: str, made: Any, _: ComponentSettings, context: Any
) -> Any:
    (interface, names), idle = _DECIDES[slot], IdleBlocks()
    make = partial(make_component, registry, slot, switch.options, context)
    other, start = make(), f"--instead {slot}={switch.options.name}: "
    if isinstance(other, SupportsService | SupportsQuantum | SupportsDemand):
        raise SettingsError(
            f"{start}it decides by what it was told before, or preempts by itself; choose one that "
            "decides by what it sees"
        )
    if slot == "preemption" and other.may_swap and not made.may_swap:
        raise SettingsError(
            f"{start}there are no blocks on the host to swap to; choose preemption auto or swap, "
            "and replay that"
        )
    passing: Any = guarded(made, slot, interface, idle if slot == "evictor" else None)

    def evict() -> Any:
        block = idle.evicted_by(make())
        passing.remove(block)
        return block

    for name in names:
        instead = evict if slot == "evictor" else getattr(other, name)
        setattr(passing, name, partial(switch.ask, getattr(passing, name), instead))
    if slot == "queue_order":
        type(passing).stable = False  # so that the queue is sorted again in each step
    return passing
