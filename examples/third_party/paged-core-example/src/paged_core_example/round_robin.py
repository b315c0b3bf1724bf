"""A scheduler that serves running requests in turns."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Literal

from paged_core.component import ComponentSettings
from paged_core.errors import OutOfBlocks
from paged_core.interfaces.preemption import PreemptionMode
from paged_core.interfaces.scheduler import Queues, Schedule, Scheduler, SchedulerParts
from paged_core.sequence import SequenceGroup, SequenceState, Status
from paged_core.waiting_queue import WaitingQueue
from pydantic import Field, PositiveInt

from paged_core_example.room import Room


class RoundRobinSettings(ComponentSettings):
    """Options of :class:`RoundRobinScheduler`."""

    name: Literal["round_robin"] = "round_robin"
    quantum: PositiveInt = Field(
        default=128, description="tokens of one sequence in one turn, at most"
    )
    max_num_batched_tokens: PositiveInt = Field(
        default=2048, description="tokens computed in one step, at most"
    )
    max_num_seqs: PositiveInt = Field(default=256, description="sequences that run, at most")


class RoundRobinScheduler(Scheduler):
    """Round robin under a budget of tokens: between two turns of a request, all others have one.

    A request gets a place in the round as soon as there is a seat, and its tokens fit beside what
    the others need for theirs. A step serves those whose turn it is until the budget is spent; the
    next one goes on with the first that was not reached. Prompts are computed a quantum at a time,
    so a long one holds nobody up for longer than that. When blocks run out, a victim is chosen
    among those whose turn is still to come in the step, and nobody new starts in it; nor does
    anybody while groups are swapped out.

    Nobody who has a place starves. Whether somebody without one can is up to the ``queue_order``.
    """

    def __init__(self, options: RoundRobinSettings, parts: SchedulerParts, /) -> None:
        self._options = options
        self._kv = parts.kv_cache
        self._order = parts.queue_order
        self._victim = parts.victim
        self._preemption = parts.preemption
        self._max_model_len = parts.max_model_len
        self._room = Room(parts.kv_cache, parts.preemption)
        self._round: list[SequenceGroup] = []
        """Those who have a place, in the order of their turns; some have not started."""
        self._swapped: list[SequenceGroup] = []
        self._waiting = WaitingQueue(parts.queue_order)
        self._now = 0.0

    @property
    def max_num_seqs(self) -> int:
        return self._options.max_num_seqs

    @property
    def length_cap(self) -> int:
        return self._max_model_len

    def __len__(self) -> int:
        return len(self._round) + len(self._swapped) + len(self._waiting)

    def queues(self) -> Queues:
        started = [group for group in self._round if _has_started(group)]
        others = [group for group in self._round if not _has_started(group)]
        return Queues(started, [*others, *self._waiting.ordered()], tuple(self._swapped))

    def refuse(self, group: SequenceGroup, /) -> str | None:
        budget, seats = self._options.max_num_batched_tokens, self._options.max_num_seqs
        if group.seats > min(budget, seats):
            return (
                f"n={group.seats} is more than one step serves (scheduler.max_num_seqs={seats}, "
                f"scheduler.max_num_batched_tokens={budget})"
            )
        if len(group.request.prompt) >= self._max_model_len:
            return f"its prompt leaves no room within max_model_len={self._max_model_len}"
        return self._room.refuse(group)

    def add(self, group: SequenceGroup, /) -> None:
        self._waiting.push(group, self._now)

    def remove(self, group: SequenceGroup, /) -> None:
        if group in self._waiting:
            self._waiting.remove(group)
        elif group in self._swapped:
            self._swapped.remove(group)
        else:
            self._round.remove(group)

    def schedule(self, now: float, /) -> Schedule:
        self._now = now
        self._waiting.refresh(now)
        decided = Schedule()
        if not self._swapped:
            self._give_places(decided)
        turns = _Turns(self._options.max_num_batched_tokens, decided, deque(self._round))
        self._serve(turns)
        self._round = turns.round
        if not turns.somebody_gave_way:
            self._swap_in(decided)
        return decided

    # ------------------------------------------------------------------ who has a place

    def _give_places(self, decided: Schedule) -> None:
        if not len(self._waiting):
            return
        seats = self._options.max_num_seqs - sum(group.seats for group in self._round)
        left = self._room.left(self._round)
        while len(self._waiting):
            group = self._waiting.head()
            if self._room.needed(group) > self._kv.num_blocks:
                self._waiting.pop()
                decided.ignored.append((group, "it has outgrown the whole cache"))
                continue
            seats -= group.seats
            left -= self._room.needed_beside_cached(group)
            if seats < 0 or left < 0:
                return
            self._round.append(self._waiting.pop())

    def _swap_in(self, decided: Schedule) -> None:
        """Bring groups back; they have their next turn after everybody else."""
        while self._swapped:
            group = self._swapped[0]
            started = [other for other in self._round if _has_started(other)]
            seats = group.seats + sum(other.seats for other in started)
            if self._room.is_too_large(group):
                self._kv.release_group(group)
                decided.ignored.append((group, "it fills the whole cache"))
            elif seats <= self.max_num_seqs and self._room.fits_again(group, started):
                self._kv.swap_in(group)
                group.status = Status.RUNNING
                self._round.append(group)
                decided.swapped_in.append(group)
            else:
                return
            del self._swapped[0]

    # ------------------------------------------------------------------ whose turn it is

    def _serve(self, turns: _Turns) -> None:
        while turns.due and turns.budget:
            group, budget = turns.due[0], turns.budget
            if not _has_started(group):
                self._start(turns)
            else:
                self._take_turn(turns)
                if turns.budget < budget:
                    turns.served.append(turns.due.popleft())
                elif turns.due and turns.due[0] is group:
                    return  # it finds no room and goes first in the next step

    def _start(self, turns: _Turns) -> None:
        """Give the first of those due its first blocks and tokens, or let it keep its place."""
        group = turns.due.popleft()
        live = group.live
        started = len(turns.served) + sum(map(_has_started, turns.due))
        if (
            self._swapped
            or turns.somebody_gave_way
            or len(live) > turns.budget
            or not self._room.is_there_now(group, beside=started)
            or not self._has_seats(turns, group)
        ):
            turns.skipped.append(group)
            return
        total = 0
        for place, sequence in enumerate(live):
            hit = self._kv.lookup(sequence, len(sequence.tokens) - 1)
            cached = len(hit.blocks) * self._kv.block_size
            left = turns.budget - (len(live) - place - 1)  # a token for each of the others
            count = min(len(sequence.tokens) - cached, self._options.quantum, left)
            self._kv.admit(sequence, count, hit, cached)
            turns.take(sequence, count)
            total += cached
        group.status = Status.RUNNING
        turns.served.append(group)
        turns.decided.admitted.append((group, total))

    def _has_seats(self, turns: _Turns, group: SequenceGroup) -> bool:
        taken = sum(other.seats for other in turns.round if _has_started(other))
        return taken + group.seats <= self.max_num_seqs

    def _take_turn(self, turns: _Turns) -> None:
        """Plan something for the first of those due, or let it give way, or leave it first."""
        live = turns.due[0].live
        behind = [sequence for sequence in live if sequence.num_pending > 1]
        if not behind and len(live) > 1:
            self._decode_together(turns)
            return
        for sequence in behind or live:  # a forked group computed anew: each for itself
            count = min(sequence.num_pending, self._options.quantum, turns.budget)
            while count:
                try:
                    self._kv.reserve(sequence, count)
                except OutOfBlocks:
                    if not self._make_room(turns):
                        return
                else:
                    turns.take(sequence, count)
                    break

    def _decode_together(self, turns: _Turns) -> None:
        group = turns.due[0]
        if len(group.live) > turns.budget:
            return
        while self._kv.blocks_to_grow(group) > self._kv.num_free:
            if not self._make_room(turns):
                return
        for sequence in group.live:
            self._kv.reserve(sequence, 1)
            turns.take(sequence, 1)

    def _make_room(self, turns: _Turns) -> bool:
        """Let somebody give way; whether the first of those due may try again.

        It may not if it gave way itself, or if it is the last and others hold what it needs: then
        it comes first in the next step, and they are among the candidates.
        """
        group = turns.due[0]
        candidates = [
            other for other in turns.due if _has_started(other) and not turns.has_planned(other)
        ]
        if not candidates or (candidates == [group] and turns.served):
            return False
        candidates.sort(key=lambda other: self._order.key(other, self._now))
        victim = self._victim.choose(candidates, self._now)
        turns.due.remove(victim)
        if candidates == [group] and self._room.is_too_large(group):
            self._kv.release_group(group)
            turns.decided.ignored.append((group, "it is alone and fills the whole cache"))
        else:
            self._give_way(turns.decided, victim)
        return victim is not group

    def _give_way(self, decided: Schedule, victim: SequenceGroup) -> None:
        if self._preemption.mode(victim) is PreemptionMode.SWAP:
            try:
                self._kv.swap_out(victim)
            except OutOfBlocks:
                pass  # no room on the host either: it will be computed again
            else:
                victim.status = Status.SWAPPED
                self._swapped.append(victim)
                decided.swapped_out.append(victim)
                return
        self._kv.release_group(victim)
        victim.status = Status.WAITING
        self._waiting.push_front(victim, self._now)
        decided.preempted.append(victim)


def _has_started(group: SequenceGroup) -> bool:
    return group.status is Status.RUNNING


@dataclass
class _Turns:
    """The round while a step is planned."""

    budget: int
    """Tokens left."""
    decided: Schedule
    due: deque[SequenceGroup]
    """Those whose turn is still to come."""
    skipped: list[SequenceGroup] = field(default_factory=list)
    """Those who could not start in their turn; they keep their place."""
    served: list[SequenceGroup] = field(default_factory=list)

    @property
    def round(self) -> list[SequenceGroup]:
        """Everybody who has a place, in the order of the turns to come."""
        return [*self.due, *self.skipped, *self.served]

    @property
    def somebody_gave_way(self) -> bool:
        return bool(self.decided.preempted or self.decided.swapped_out)

    def has_planned(self, group: SequenceGroup) -> bool:
        """Whether this step computes something of the group whose turn it is."""
        batch = self.decided.sequences
        return bool(batch) and batch[-1].group is group

    def take(self, sequence: SequenceState, num_tokens: int) -> None:
        self.decided.sequences.append(sequence)
        self.decided.num_tokens.append(num_tokens)
        self.budget -= num_tokens
