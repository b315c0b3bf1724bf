"""Shadows: components of a baseline that are asked beside those of a run, and change nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from paged_core.checked.calls import guarded
from paged_core.engine.contexts import Context
from paged_core.ids import BlockId
from paged_core.interfaces.admission import Admission, Decision, Held, Load, Refused
from paged_core.interfaces.evictor import BlockInfo, Evictor, SupportsDemand
from paged_core.interfaces.length_predictor import LengthPredictor
from paged_core.interfaces.observer import Observer
from paged_core.interfaces.queue_order import SupportsService
from paged_core.interfaces.scheduler import Schedule
from paged_core.plugins.component import ComponentSettings
from paged_core.plugins.making import make_component
from paged_core.plugins.registry import Registry
from paged_core.request import Request
from paged_core.requests.waiting_queue import WaitingQueue
from paged_core.sequence import SequenceGroup
from paged_plugins.decision_count import DecisionCount
from paged_plugins.substitutes import (
    IdleBlocks,
    Substitute,
    passing,
    substituted,
    watched_scheduler,
)

Baseline = Mapping[str, ComponentSettings]
"""Options of the baseline's component, by the slot to be watched."""
WATCHED = (
    *("admission", "scheduler", "queue_order", "victim", "preemption", "evictor"),
    *("router", "length_predictor"),
)
"""Slots whose decisions are counted."""


def _cost(answer: Decision, *asked: Any) -> dict[str, float]:
    """Return what an admission's decision costs the request, by unit."""
    if isinstance(answer, Held):
        return {"s held": answer.until - asked[-1]} if answer.until > asked[-1] else {}
    return {"refused": 1} if isinstance(answer, Refused) else {}


_EFFECTS = {"admission": _cost}
"""By slot, what stands for its answers, which are compared themselves elsewhere."""
_ASKED: Mapping[str, Mapping[str, Callable[..., bool | None]]] = {
    "admission": {"decide": lambda answers, *asked: any(answers)},
    "victim": {"choose": lambda answers, candidates, now: len(candidates) > 1},
    "preemption": {
        "mode": lambda answers, group: True,
        "tokens_to_reserve": lambda answers, group: (
            any(each is not None for each in answers) or None
        ),
    },
    "router": {"route": lambda answers, *asked: len(asked[-1]) > 1},
    "length_predictor": {"expect": lambda answers, request: True},
}
"""By slot, whether a decision had a choice, by the method that is called; ``None``: it was none."""
_FREE, _EARNED = 20_000, 8
"""Elements that shadows may be shown at first, and for each call of what they shadow."""


class DecisionWatch:
    """Counts the decisions of the components that its registry makes.

    Beside a component whose options are not the baseline's, the baseline's is asked in the same
    state. What that remembers is of its own answers; one that raises is asked no more. Shadows that
    need a look at all candidates are asked so rarely that they cost a bounded share of a run.
    """

    def __init__(self, baseline: Baseline | None, registry: Registry) -> None:
        self._baseline, self._plain = baseline or {}, registry
        self.counts = {slot: DecisionCount() for slot in WATCHED if slot in self._baseline}
        self._order = _Shadow(None)
        """Shadow of the order of the scheduler that is made next."""
        slots = set(self.counts)
        if "queue_order" in slots:
            slots |= {"scheduler", "victim"}  # which ask it
        made: dict[str, Substitute] = {slot: partial(self._watched, slot) for slot in slots}
        self.registry = substituted(registry, made) if made else registry

    def _watched(self, slot: str, made: Any, options: ComponentSettings, context: Context) -> Any:
        base = self._baseline.get(slot, options)
        make = partial(make_component, self._plain, slot, base, context)
        shadow = _Shadow(None if base == options else make)
        if slot == "queue_order":
            self._order = shadow
            return made
        if slot == "scheduler":
            counts = self.counts.get("queue_order"), self.counts.get(slot)
            queue = _Queue(*counts, self._order)
            return watched_scheduler(made, queue.begin_step, queue)
        if slot == "evictor":
            return passing(made, slot, self._plain, _Evictions(self.counts[slot], shadow))
        if slot == "length_predictor":  # what it answers counts where another policy decides by it
            kind = _LearningPredictor if isinstance(made, Observer) else LengthPredictor
            return guarded(made, slot, kind, _Asked(slot, self.counts[slot], _Shadow(None), None))
        ranking = self.counts.get("queue_order") if slot == "victim" else None
        watch = _Asked(slot, self.counts.get(slot), shadow, ranking)
        if slot == "admission":
            told = made if isinstance(made, Observer) else _ToldAdmission(made)
            return guarded(told, slot, _ToldAdmission, watch)
        return passing(made, slot, self._plain, watch)


class _Shadow:
    """A component that is asked beside another.

    Args:
        make: makes it anew; ``None``: there is none.
    """

    def __init__(self, make: Callable[[], Any] | None) -> None:
        self._make = make
        self._made: Any = None
        self.left = _FREE
        """Elements that it may be shown."""

    def ask(self, what: Callable[[Any], Any], *, fresh: bool = False) -> Any:
        """Return what the shadow answers; ``None``: there is none, or it has raised.

        Args:
            fresh: ask one that was just made.
        """
        if self._make is None:
            return None
        try:
            if self._made is None or fresh:
                self._made = self._make()
            return what(self._made)
        except Exception:  # noqa: BLE001 - a shadow must not end a run that is not its own
            self._make = None
            return None

    def affords(self, num_elements: int) -> bool:
        """Return whether it may be shown so many elements now, and count them."""
        is_affordable = self._make is not None and num_elements <= self.left
        self.left -= num_elements if is_affordable else 0
        return is_affordable


class _ToldAdmission(Admission, Observer):
    """An admission that is told of nothing, but whose shadow may be."""

    def __init__(self, inner: Admission) -> None:
        self._inner = guarded(inner, "admission", Admission)

    def decide(self, request: Request, load: Load, now: float, /) -> Decision:
        return self._inner.decide(request, load, now)


class _LearningPredictor(LengthPredictor, Observer):
    """A predictor that is told of what happens."""


@dataclass
class _Asked:
    """Counts the calls that decide; the shadow is told of all others, too."""

    _slot: str
    _count: DecisionCount | None
    _shadow: _Shadow
    _ranking: DecisionCount | None

    def __getattr__(self, name: str) -> Callable[..., None]:
        return partial(self._called, name)

    def _called(self, name: str, answer: Any, *asked: Any) -> None:
        seen: Callable[..., Any] = _EFFECTS.get(self._slot, lambda answer, *_: answer)
        other = self._shadow.ask(
            lambda each: (seen(getattr(each, name, lambda *_: None)(*asked), *asked),)
        )
        if (has_choice := _ASKED[self._slot].get(name)) is None:
            return
        answers = (seen(answer, *asked), *(other or ()))
        if (had_choice := has_choice(answers, *asked)) is None:
            return
        if self._ranking is not None:
            self._ranking.decided(had_choice, None)
        if self._count is not None:
            self._count.decided(had_choice, answers[0] != answers[1] if other else None)
            if other and self._slot in _EFFECTS:
                self._count.did(*answers)


class _Evictions(IdleBlocks):
    def __init__(self, count: DecisionCount, shadow: _Shadow) -> None:
        super().__init__()
        self._count, self._shadow = count, shadow

    def add(self, _: None, block: BlockId, info: BlockInfo) -> None:
        super().add(_, block, info)
        self._shadow.left += _EARNED

    def evict(self, block: BlockId) -> None:
        had_choice, other = len(self.blocks) > 1, None
        if had_choice and self._shadow.affords(len(self.blocks)):
            other = self._shadow.ask(self._evicted, fresh=True)
        self._count.decided(had_choice, None if other is None else other != block)
        super().evict(block)

    def _evicted(self, evictor: Evictor) -> BlockId | None:
        is_told = not isinstance(evictor, SupportsDemand)  # else not of what is wanted
        return self.evicted_by(evictor) if is_told else None


class _Queue:
    """The waiting groups, also in the order of the baseline: who would have been admitted.

    Decisions of the order are admissions; those of the scheduler are steps, and it had a choice
    where something was left for a later one.
    """

    def __init__(
        self, order: DecisionCount | None, steps: DecisionCount | None, shadow: _Shadow
    ) -> None:
        self._order, self._steps, self._shadow = order, steps, shadow
        self._waiting: set[SequenceGroup] = set()
        self._running: set[SequenceGroup] = set()
        self._queue = shadow.ask(WaitingQueue)
        self._is_stable = shadow.ask(lambda order: order.stable)
        self._serves = shadow.ask(lambda order: isinstance(order, SupportsService))
        self._is_sorted = False
        self._now = 0.0

    def add(self, _: None, group: SequenceGroup) -> None:
        self._push("push", group)

    def remove(self, _: None, group: SequenceGroup) -> None:
        self._leave(group)
        self._tell("left", group)

    def begin_step(self, now: float) -> None:
        """Sort the queue before a step is planned."""
        self._now, count = now, len(self._waiting)
        self._shadow.left += _EARNED
        self._is_sorted = self._is_stable or count < 2
        if not self._is_sorted and self._shadow.affords(count):
            self._is_sorted = True
            self._do("refresh", now)

    def schedule(self, plan: Schedule, now: float) -> None:
        for group, _ in plan.admitted:
            head = self._do("head") if self._is_sorted else None
            if self._order is not None:
                differed = None if head is None else head is not group
                self._order.decided(len(self._waiting) > 1, differed)
            self._leave(group)
            self._running.add(group)
        self._running.update(plan.swapped_in)
        for group in (*plan.preempted, *plan.swapped_out, *(group for group, _ in plan.ignored)):
            self._leave(group)
        for group in plan.preempted:
            self._push("push_front", group)
        batch = list(zip(plan.sequences, plan.num_tokens, strict=True))
        if batch and self._steps is not None:
            has_left = bool(self._waiting) or any(each.num_pending > n for each, n in batch)
            has_left |= len({each.group for each, _ in batch}) < len(self._running)
            self._steps.decided(has_left, None)
        for each, num_tokens in batch if self._serves else ():
            self._tell("served", each.group, num_tokens, now)

    def _push(self, how: str, group: SequenceGroup) -> None:
        self._waiting.add(group)
        self._do(how, group, self._now)

    def _leave(self, group: SequenceGroup) -> None:
        self._running.discard(group)
        if group in self._waiting:
            self._waiting.remove(group)
            self._do("remove", group)

    def _do(self, name: str, *args: Any) -> Any:
        return self._shadow.ask(lambda _: getattr(self._queue, name)(*args))

    def _tell(self, name: str, *args: Any) -> None:
        if self._serves:
            self._shadow.ask(lambda order: getattr(order, name)(*args))
