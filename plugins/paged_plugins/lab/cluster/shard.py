"""The replicas of a cluster that one process serves, from one time to the next."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf
from typing import NamedTuple

from paged_core.engine.wiring import build_engine
from paged_core.errors import PluginError, RequestError, SettingsError
from paged_core.interfaces.executor import Capacity, SupportsClock
from paged_core.plugins.registry import Registry
from paged_core.sequence import SequenceGroup
from paged_core.settings.schema import EngineSettings
from paged_plugins.lab.cluster.replica import Replica
from paged_plugins.lab.runs.run_record import (
    RequestRecord,
    RunTotals,
    ended_record,
)
from paged_plugins.lab.runs.work_count import CountsWork
from paged_plugins.routing.router import BlockChange
from paged_plugins.workloads.serving import Arrival, Refusal, deciding_sequence


class EndedRequest(NamedTuple):
    """A request that ended with a step."""

    record: RequestRecord
    error: str | None
    """Why it failed or was ignored, if it was."""
    answer: Sequence[int]
    """Tokens of its first sequence, if requests follow it."""


StepEnd = tuple[float, int, int, int, Sequence[EndedRequest], Sequence[BlockChange]]
"""The end of a step; tuples, since there are millions of them. Sorted, they are in the order of the
events of a cluster.

0. Seconds from the start of the run.
1. How many events of the cluster at this very time came before, in each of which a step began that
   took no time, since it computed nothing.
2. The number of the replica.
3. By how many tokens its load changes: those drawn, without those of the answers that ended.
4. The requests that ended.
5. What changed in its prefix cache, where the router wants to know.
"""


_MOST_ENDS = 2048
"""Ends of steps after which a shard reports before it goes on, so that memory is bounded."""


@dataclass(slots=True)
class Progress:
    """Events on the replicas of a shard."""

    ends: list[StepEnd] = field(default_factory=list)
    """In their order."""
    next_at: float = inf
    """No step ends before it that is not among ``ends``; infinite if none will."""
    is_complete: bool = True
    """True if all is done that was asked for; if not, it can be asked for again."""


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
        """A heap: when the step in flight of each busy replica ends."""
        self._may_begin: list[int] = []
        """Replicas that had a step end, or a request arrive, at the present time."""
        self._live: dict[str, tuple[Arrival, bool]] = {}
        """By id, the requests that have not ended, and whether their answers are wanted."""

    def capacity(self) -> Capacity:
        """Return that of each engine."""
        return next(iter(self._replicas.values())).engine.capacity

    def add(self, number: int, arrival: Arrival, wants_answer: bool) -> Refusal | None:
        """A request arrives at the present time; return why its replica does not take it on.

        Args:
            wants_answer: its tokens are reported when it has ended.
        """
        replica = self._replicas[number]
        try:
            replica.engine.add(arrival.asked(0.0))
        except (RequestError, PluginError) as error:
            return Refusal.of(error)
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

    def totals(self) -> tuple[Sequence[RunTotals], Mapping[int, int]]:
        """The run has ended: return the totals of each replica, and the times between tokens."""
        return [replica.totals() for replica in self._replicas.values()], self._token_gaps

    def _end_steps(self, repeat: int, found: list[StepEnd]) -> None:
        ends, now = self._ends, self._now
        while ends and ends[0][0] <= now:
            number = heappop(ends)[1]
            replica = self._replicas[number]
            num_tokens, groups = replica.end_step()
            ended = [self._ended(group) for group in groups] if groups else ()
            found.append((now, repeat, number, num_tokens, ended, replica.block_changes()))
            self._may_begin.append(number)

    def _ended(self, group: SequenceGroup) -> EndedRequest:
        arrival, wants_answer = self._live.pop(group.id)
        tokens = group.sequences[0].tokens
        answer = tokens[len(group.request.prompt) :] if wants_answer else ()
        told = deciding_sequence(group).error
        return EndedRequest(ended_record(group, arrival, 0.0), told, answer)

    def _begin_steps(self) -> None:
        numbers = self._may_begin
        if len(numbers) > 1:
            numbers = sorted(set(numbers))
        for number in numbers:
            replica = self._replicas[number]
            if replica.engine.has_unfinished:
                heappush(self._ends, (replica.begin_step(self._now), number))
        self._may_begin.clear()


@contextmanager
def open_shard(
    numbers: Iterable[int], settings: EngineSettings, registry: Registry
) -> Iterator[Shard]:
    """Build an engine for each of ``numbers``, and close them at the end.

    Raises:
        SettingsError: the engines cannot be simulated.
    """
    token_gaps: dict[int, int] = {}
    replicas: dict[int, Replica] = {}
    with ExitStack() as closing:
        for number in numbers:
            replicas[number] = build_replica(number, settings, registry, token_gaps)
            closing.callback(replicas[number].engine.close)
        yield Shard(replicas, token_gaps)


def build_replica(
    number: int, settings: EngineSettings, registry: Registry, token_gaps: dict[int, int]
) -> Replica:
    """Build an engine of a cluster; SettingsError if it cannot be simulated."""
    engine = build_engine(settings, registry)
    executor = engine.executor
    if not (isinstance(executor, SupportsClock) and isinstance(executor, CountsWork)):
        engine.close()
        raise SettingsError(
            f"executor {settings.executor.name!r} runs in real time, and a cluster is simulated; "
            "set executor to simulated"
        )
    return Replica(number, engine, executor, executor.clock, token_gaps)
