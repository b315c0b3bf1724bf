"""The requests of a replay that have not arrived yet."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from paged_plugins.decisions.replay_request import ReplayRequest
from paged_plugins.workloads.arrival_queue import ArrivalQueue


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request that arrives."""

    request: ReplayRequest
    at: float | None
    """Seconds from the start; ``None``: it was to arrive before a step."""
    before: Sequence[int] = ()
    """The tokens that its prompt continues."""


class Arrivals:
    """Requests by the step or the time at which they arrive, and those that follow others.

    Args:
        step_of: returns the first step at or after a time, where every step has its time; requests
            that arrive before the same step do so in the order of the scenario. ``None``: times are
            compared with a clock.
    """

    def __init__(
        self, requests: Iterable[ReplayRequest], step_of: Callable[[float], int] | None
    ) -> None:
        self._step_of = step_of
        self._by_step = ArrivalQueue[int, Arrival]()
        self._by_time = ArrivalQueue[float, Arrival]()
        self._followers: defaultdict[str, list[ReplayRequest]] = defaultdict(list)
        for request in requests:
            if request.follows is not None:
                self._followers[request.follows].append(request)
            else:
                self._place(Arrival(request, request.at))

    @property
    def next_step(self) -> int | None:
        """The step before which the next one arrives, of those that arrive before a step."""
        return self._by_step.next_at

    @property
    def next_time(self) -> float | None:
        """Seconds from the start at which the next one arrives, of the others."""
        return self._by_time.next_at

    def due(self, step: int, now: float) -> Iterator[Arrival]:
        """Yield those that arrive before a step that is planned at ``now``."""
        for _, arrival in self._by_step.due(step):
            yield arrival
        for _, arrival in self._by_time.due(now):
            yield arrival

    def follow(self, request_id: str, ended: float, tokens: Sequence[int]) -> None:
        """Let those arrive that follow a request.

        Args:
            ended: seconds from the start.
            tokens: its prompt and the answer of its first sequence.
        """
        for follower in self._followers.pop(request_id, ()):
            self._place(Arrival(follower, ended + follower.after, tokens))

    def drop(self, request_id: str) -> list[str]:
        """Give up all that follow a request, directly or not; return their ids."""
        dropped = [each.id for each in self._followers.pop(request_id, ())]
        for each in dropped:  # it grows meanwhile
            dropped += [follower.id for follower in self._followers.pop(each, ())]
        return dropped

    def left(self) -> list[str]:
        """Return the ids of all that have not arrived: first those whose time is known."""
        known = [each.request for queue in (self._by_step, self._by_time) for each in queue]
        following = [each for group in self._followers.values() for each in group]
        return [request.id for request in (*known, *following)]

    def _place(self, arrival: Arrival) -> None:
        step, number = arrival.request.step, arrival.request.number
        if arrival.at is None:
            self._by_step.add(step or 0, number, arrival)
        elif self._step_of is not None:
            self._by_step.add(self._step_of(arrival.at), number, arrival)
        else:
            self._by_time.add(arrival.at, number, arrival)
