"""The requests of a replay that have not arrived yet."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from paged_plugins.decisions.replay_request import ReplayRequest


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
        self._by_step: list[tuple[int, int, Arrival]] = []
        """A heap: the step, the number in the scenario, the arrival."""
        self._by_time: list[tuple[float, int, Arrival]] = []
        self._followers: defaultdict[str, list[ReplayRequest]] = defaultdict(list)
        for request in requests:
            if request.follows is not None:
                self._followers[request.follows].append(request)
            else:
                self._place(Arrival(request, request.at))
        heapify(self._by_step)
        heapify(self._by_time)

    @property
    def next_step(self) -> int | None:
        """The step before which the next one arrives, of those that arrive before a step."""
        return self._by_step[0][0] if self._by_step else None

    @property
    def next_time(self) -> float | None:
        """Seconds from the start at which the next one arrives, of the others."""
        return self._by_time[0][0] if self._by_time else None

    def due(self, step: int, now: float) -> Iterator[Arrival]:
        """Yield those that arrive before a step that is planned at ``now``."""
        while self._by_step and self._by_step[0][0] <= step:
            yield heappop(self._by_step)[2]
        while self._by_time and self._by_time[0][0] <= now:
            yield heappop(self._by_time)[2]

    def follow(self, request_id: str, ended: float, tokens: Sequence[int]) -> None:
        """Let those arrive that follow a request.

        Args:
            ended: seconds from the start.
            tokens: its prompt and the answer of its first sequence.
        """
        for follower in self._followers.pop(request_id, ()):
            self._place(Arrival(follower, ended + follower.after, tokens), sort=True)

    def drop(self, request_id: str) -> list[str]:
        """Give up all that follow a request, directly or not; return their ids."""
        dropped = [each.id for each in self._followers.pop(request_id, ())]
        for each in dropped:  # it grows meanwhile
            dropped += [follower.id for follower in self._followers.pop(each, ())]
        return dropped

    def left(self) -> list[str]:
        """Return the ids of all that have not arrived: first those whose time is known."""
        known = [
            item[2].request for heap in (self._by_step, self._by_time) for item in sorted(heap)
        ]
        following = [each for group in self._followers.values() for each in group]
        return [request.id for request in (*known, *following)]

    def _place(self, arrival: Arrival, *, sort: bool = False) -> None:
        step, number = arrival.request.step, arrival.request.number
        put = heappush if sort else list.append
        if arrival.at is None:
            put(self._by_step, (step or 0, number, arrival))
        elif self._step_of is not None:
            put(self._by_step, (self._step_of(arrival.at), number, arrival))
        else:
            put(self._by_time, (arrival.at, number, arrival))
