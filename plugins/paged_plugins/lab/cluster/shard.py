"""Some replicas of a cluster, served from one time to the next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf

from paged_core.errors import RequestError
from paged_core.interfaces.executor import Capacity
from paged_core.sequence import SequenceGroup
from paged_plugins.lab.cluster.replica import Replica, ReplicaCounts
from paged_plugins.lab.cluster.step_end import EndedRequest, StepEnd
from paged_plugins.lab.runs.run_record import ended_record
from paged_plugins.workloads.serving import Arrival

_MOST_ENDS = 2048
"""Of steps, after which a shard reports before it goes on, so that memory is bounded."""


@dataclass(slots=True)
class Progress:
    """What happened on the replicas of a shard."""

    ends: list[StepEnd] = field(default_factory=list)
    """In their order."""
    next_at: float = inf
    """No step ends before it that is not among ``ends``; infinite if none will."""
    is_complete: bool = True
    """Whether all is done that was asked for; if not, it can be asked for again."""


class Shard:
    """Replicas that are served in one process, and know nothing of those in others.

    Between two arrivals, replicas do not affect each other. The requests that arrive at a time are
    added after :meth:`run` has come to it, and before it goes on.

    Args:
        replicas: by their number in the cluster; one or more.
        token_gaps: times between tokens, by bucket; the replicas count into it.
    """

    def __init__(self, replicas: Mapping[int, Replica], token_gaps: dict[int, int]) -> None:
        self._replicas = replicas
        self._token_gaps = token_gaps
        self._now = 0.0
        """All that happens before this time has happened, and steps that end at it have ended."""
        self._ends: list[tuple[float, int]] = []
        """A heap: when the step under way of each busy replica ends."""
        self._may_begin: list[int] = []
        """Replicas that had a step end, or a request arrive, at the present time."""
        self._live: dict[str, tuple[Arrival, bool]] = {}
        """By id, the requests that have not ended, and whether their answers are wanted."""

    def capacity(self) -> Capacity:
        """Return that of each engine."""
        return next(iter(self._replicas.values())).engine.capacity

    def add(self, number: int, arrival: Arrival, wants_answer: bool) -> str | None:
        """A request arrives at the present time; return why its replica refuses it, if it does.

        Args:
            wants_answer: its tokens are reported when it has ended.
        """
        replica = self._replicas[number]
        try:
            replica.add(arrival.asked(0.0))
        except RequestError as error:
            return str(error)
        self._live[arrival.request.id] = arrival, wants_answer
        if not replica.is_busy:
            self._may_begin.append(number)
        return None

    def run(self, until: float) -> Progress:
        """Serve all that happens before a time, and end the steps that end at it."""
        progress, repeat = Progress(), 0
        self._begin_steps()
        while self._ends and (now := self._ends[0][0]) <= until:
            if now > self._now and len(progress.ends) >= _MOST_ENDS:
                progress.next_at, progress.is_complete = now, False
                return progress
            repeat = repeat + 1 if now == self._now else 0
            self._now = now
            self._end_steps(repeat, progress.ends)
            if now < until:
                self._begin_steps()
        if until < inf:
            self._now = until
        if self._may_begin:
            progress.next_at = until
        elif self._ends:
            progress.next_at = self._ends[0][0]
        return progress

    def totals(self) -> tuple[Sequence[ReplicaCounts], Mapping[int, int]]:
        """The run has ended: return the counts of each replica, and the times between tokens."""
        return [replica.counts() for replica in self._replicas.values()], self._token_gaps

    def close(self) -> None:
        """Close the engines."""
        for replica in self._replicas.values():
            replica.close()

    def _end_steps(self, repeat: int, found: list[StepEnd]) -> None:
        ends, now = self._ends, self._now
        while ends and ends[0][0] <= now:
            number = heappop(ends)[1]
            num_tokens, groups = self._replicas[number].end_step()
            ended = [self._ended(group) for group in groups] if groups else ()
            found.append((now, repeat, number, num_tokens, ended))
            self._may_begin.append(number)

    def _ended(self, group: SequenceGroup) -> EndedRequest:
        arrival, wants_answer = self._live.pop(group.id)
        first = group.sequences[0]
        answer = first.tokens[len(group.request.prompt) :] if wants_answer else ()
        return EndedRequest(ended_record(group, arrival, 0.0), first.error, answer)

    def _begin_steps(self) -> None:
        numbers = self._may_begin
        if len(numbers) > 1:
            numbers = sorted(set(numbers))
        for number in numbers:
            replica = self._replicas[number]
            if replica.has_unfinished:
                heappush(self._ends, (replica.begin_step(self._now), number))
        self._may_begin.clear()
