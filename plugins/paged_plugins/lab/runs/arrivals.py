"""The requests of a workload in the order in which they arrive, those that follow others too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count

from paged_plugins.workloads.arrival_queue import ArrivalQueue
from paged_plugins.workloads.content import token_ids
from paged_plugins.workloads.request import WorkloadRequest


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request with its whole prompt."""

    request: WorkloadRequest
    at: float
    """Seconds from the start of the run."""
    prompt: tuple[int, ...]
    """Token ids."""


class Arrivals:
    """Requests that have not arrived yet.

    Args:
        drawn: requests that follow no other, by their time ``at``.
        vocab_size: token ids are below it; ``None``: any token id is served.
    """

    def __init__(self, drawn: Iterator[WorkloadRequest], vocab_size: int | None) -> None:
        self._drawn = drawn
        self._vocab_size = vocab_size
        self._numbers = count()
        self._to_come = ArrivalQueue[float, tuple[WorkloadRequest, Sequence[int]]]()
        """Requests and the tokens that they follow; of the drawn ones it holds one, the next."""
        self._draw_next()

    @property
    def next_at(self) -> float | None:
        """Seconds from the start at which the next request arrives; ``None``: none will."""
        return self._to_come.next_at

    def due(self, now: float) -> Iterator[Arrival]:
        """Yield the requests that have arrived, ``now`` seconds from the start."""
        for at, (request, before) in self._to_come.due(now):
            if not before:
                self._draw_next()
            own = token_ids(request.prompt, self._vocab_size)
            yield Arrival(request, at, (*before, *own))

    def follow(self, request: WorkloadRequest, ended: float, tokens: Sequence[int]) -> None:
        """Let the followers of a request arrive after its end.

        Args:
            ended: seconds from the start.
            tokens: its prompt and the answer of its first sequence.
        """
        for follower in request.followers:
            self._to_come.add(ended + follower.at, next(self._numbers), (follower, tokens))

    def _draw_next(self) -> None:
        request = next(self._drawn, None)
        if request is not None:
            self._to_come.add(request.at, next(self._numbers), (request, ()))
