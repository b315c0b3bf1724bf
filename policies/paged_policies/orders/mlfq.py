"""Levels that a request sinks through as it is served."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from paged_core.engine.contexts import OrderContext
from paged_core.interfaces.queue_order import QueueOrder
from paged_core.plugins.component import ComponentSettings
from paged_core.sequence import SequenceGroup, Status


class MlfqSettings(ComponentSettings):
    """Options of :class:`MlfqOrder`."""

    name: Literal["mlfq"] = "mlfq"
    num_levels: PositiveInt = Field(
        default=8, description="levels; the quantum of each is twice that of the one above it"
    )
    first_quantum: PositiveInt = Field(
        default=32, description="tokens that a request is given on the highest level"
    )
    promote_after: PositiveFloat | None = Field(
        default=30.0,
        description="seconds of waiting that take a request to the highest level; null: never",
    )


class MlfqOrder(QueueOrder):
    """A multi-level feedback queue that requests join by their prompts, as in FastServe (Wu et
    al., 2023).

    A request joins the highest level whose quantum covers its prompt, which counts as service
    there. It is demoted to the next level, if there is one, when it has used up the quantum of its
    own; within a level it is first come, first served. Tokens of all its sequences count, those
    recomputed after a preemption do not. A request that has waited for ``promote_after`` is
    promoted to the highest level, with a whole quantum.

    The quantum of a running request is over once it has been demoted, or has run for
    ``first_quantum`` tokens, since it last started. FastServe, which swaps keys and values
    proactively, may preempt it after every token; so does a ``first_quantum`` of 1. Every call
    costs O(1). With promotion keys change while requests wait; without it the queue is a heap.
    """

    def __init__(self, options: MlfqSettings, context: OrderContext, /) -> None:
        self._first_quantum = options.first_quantum
        self._lowest = options.num_levels - 1
        self._promote_after = options.promote_after
        self.stable = options.promote_after is None
        self._stays: dict[str, _Stay] = {}
        """Levels of the requests that have been served."""

    def key(self, group: SequenceGroup, now: float, /) -> Any:
        stay = self._stays.get(group.id)
        place = (self._joins(group), group.arrival) if stay is None else (stay.level, stay.entered)
        if group.status is not Status.RUNNING:
            place = self._promoted(group, place, now)
        return (*place, group.number)

    def served(self, group: SequenceGroup, num_tokens: int, now: float, /) -> None:
        """Count the tokens that were generated; see the class for what else counts."""
        stay = self._stays.get(group.id)
        if stay is None:
            stay = _Stay(self._joins(group), group.arrival, len(group.request.prompt))
            self._stays[group.id] = stay
        if stay.waited_since != group.waiting_since:
            self._restart(stay, group, now)
        if group.first_token_at is None or num_tokens > 1:
            return  # a prompt, or what is computed again
        stay.used += 1
        stay.since_start += 1
        if stay.used >= self._first_quantum << stay.level:
            stay.used, stay.is_over = 0, True
            if stay.level < self._lowest:
                stay.level, stay.entered = stay.level + 1, now
        elif stay.since_start >= self._first_quantum:
            stay.is_over = True

    def quantum_over(self, group: SequenceGroup, now: float, /) -> bool:
        """Return whether a running request may be preempted in favour of one that comes first."""
        stay = self._stays.get(group.id)
        return stay is not None and stay.is_over

    def left(self, group: SequenceGroup, /) -> None:
        """Forget a request that has ended."""
        self._stays.pop(group.id, None)

    def _joins(self, group: SequenceGroup) -> int:
        """The highest level whose quantum covers the prompt, or the lowest of all."""
        quanta = (len(group.request.prompt) - 1) // self._first_quantum
        return min(quanta.bit_length(), self._lowest)

    def _promoted(
        self, group: SequenceGroup, place: tuple[int, float], now: float
    ) -> tuple[int, float]:
        """The level and entry of a request that was at ``place`` when it began to wait."""
        if self._promote_after is None:
            return place
        due = group.waiting_since + self._promote_after
        return min(place, (0, due)) if due <= now else place

    def _restart(self, stay: _Stay, group: SequenceGroup, now: float) -> None:
        """Start or resume a request at the level that it was promoted to while it waited."""
        place = (stay.level, stay.entered)
        promoted = self._promoted(group, place, now)
        if promoted != place:
            (stay.level, stay.entered), stay.used = promoted, 0
        stay.waited_since = group.waiting_since
        stay.since_start, stay.is_over = 0, False


@dataclass(slots=True)
class _Stay:
    """The level of a request, and how much it was served there."""

    level: int
    """0 is the highest."""
    entered: float
    """When it entered the level, in seconds."""
    used: int
    """Tokens of the level's quantum."""
    since_start: int = 0
    """Tokens since it last started."""
    is_over: bool = False
    waited_since: float | None = None
    """When the wait began that ended with the last start."""
