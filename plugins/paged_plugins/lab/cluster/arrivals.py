"""The requests of a workload in the order in which they arrive, while it is served."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from math import inf

from paged_core.request import Request
from paged_core.sampling_params import SamplingParams
from paged_plugins.workloads.content import token_ids
from paged_plugins.workloads.request import WorkloadRequest


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request that arrives."""

    source: WorkloadRequest
    request: Request


class Arrivals:
    """What a workload draws, merged with what follows the answers: one request at a time.

    It holds the next request that was drawn, and those that follow an answer and have not arrived.

    Args:
        drawn: requests that follow no other, by their time.
        vocab_size: token ids are below it; ``None``: any are served.
    """

    def __init__(self, drawn: Iterator[WorkloadRequest], vocab_size: int | None) -> None:
        self._drawn = drawn
        self._next = next(drawn, None)
        self._vocab_size = vocab_size
        self._numbers = count()
        self._followers: list[tuple[float, int, WorkloadRequest, Sequence[int]]] = []
        """A heap: when it arrives, a number to break ties, and the tokens that it continues."""
        self._sampling: dict[tuple[int, int], SamplingParams] = {}

    @property
    def time(self) -> float:
        """Seconds from the start at which the next request arrives; infinite if there is none."""
        drawn = self._next.at if self._next else inf
        return min(drawn, self._followers[0][0]) if self._followers else drawn

    def take(self) -> Arrival:
        """Return the next request, which there must be."""
        drawn = self._next
        if drawn is None or (self._followers and self._followers[0][0] < drawn.at):
            at, _, source, context = heappop(self._followers)
            return self._arrival(source, at, context)
        self._next = next(self._drawn, None)
        return self._arrival(drawn, drawn.at, ())

    def follow(self, request: WorkloadRequest, ended: float, tokens: Sequence[int]) -> None:
        """Let the followers of a request arrive that ended at ``ended``.

        Args:
            tokens: its whole prompt and the answer of its first sequence.
        """
        for follower in request.followers:
            arrives = ended + follower.at
            heappush(self._followers, (arrives, next(self._numbers), follower, tokens))

    def _arrival(self, source: WorkloadRequest, at: float, context: Sequence[int]) -> Arrival:
        request = Request(
            id=source.id,
            prompt=(*context, *token_ids(source.prompt, self._vocab_size)),
            sampling=self._sampling_of(source),
            priority=source.priority,
            arrival=at,
            cache_salt=source.cache_salt,
            tenant=source.tenant,
            deadline=None if source.deadline is None else at + source.deadline,
        )
        return Arrival(source, request)

    def _sampling_of(self, source: WorkloadRequest) -> SamplingParams:
        shape = source.output, source.n
        if shape not in self._sampling:
            self._sampling[shape] = SamplingParams(
                max_tokens=source.output, n=source.n, ignore_eos=True
            )
        return self._sampling[shape]
