"""What one request of a replay asks, whether it is written in the scenario or drawn."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count

from paged_plugins.workloads.request import WorkloadRequest

FIRST_OWN_ID = 10**9
"""Token ids from here on are those of prompts given by their length, and generated ones."""
IDS_PER_REQUEST = FIRST_OWN_ID
_FIRST_PREFIX_ID = 2**60
_FIRST_DRAWN_ID = 2**61


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayRequest:
    """One request, and when it arrives: before a step, at a time, or after another one's end."""

    id: str
    number: int
    """In the order of the scenario, which breaks ties."""
    prompt: tuple[range, ...]
    """Token ids; of one that follows another, only what is new."""
    output: int
    n: int = 1
    priority: int = 0
    tenant: str = ""
    cache_salt: str | None = None
    deadline: float | None = None
    """In seconds from the start; of one that follows another, from its arrival."""
    step: int | None = None
    """It arrives just before this step is planned."""
    at: float | None = None
    """It arrives at this time, in seconds from the start."""
    follows: str | None = None
    """The request, earlier in the scenario, whose prompt and answer it continues."""
    after: float = 0.0
    """Seconds from the end of that one to its arrival."""

    @property
    def num_new(self) -> int:
        """Tokens of ``prompt``."""
        return sum(map(len, self.prompt))


def own_ids(number: int, length: int) -> range:
    """Return the token ids of a prompt given by its length, which no other request has."""
    first = (number + 1) * IDS_PER_REQUEST
    return range(first, first + length)


def prefix_ids(number: int, length: int) -> range:
    """Return the token ids of the ``number``-th prefix that has a name."""
    first = _FIRST_PREFIX_ID + number * IDS_PER_REQUEST
    return range(first, first + length)


def whole_lengths(requests: Iterable[ReplayRequest]) -> Iterator[tuple[ReplayRequest, int]]:
    """Yield each request with the tokens of its whole prompt: with those that it continues.

    Each must stand below the one that it follows.
    """
    ends: dict[str | None, int] = {None: 0}
    for request in requests:
        length = ends[request.follows] + request.num_new
        ends[request.id] = length + request.output
        yield request, length


def drawn_requests(drawn: Iterable[WorkloadRequest], first_number: int) -> Iterator[ReplayRequest]:
    """Yield what a workload draws, each request above those that follow it."""
    numbers = count(first_number)
    for first in drawn:
        predecessors: dict[str, str] = {}
        for request in first.family():
            predecessors.update((each.id, request.id) for each in request.followers)
            yield _drawn_request(request, predecessors.get(request.id), next(numbers))


def _drawn_request(request: WorkloadRequest, follows: str | None, number: int) -> ReplayRequest:
    is_first, shift = follows is None, _FIRST_DRAWN_ID
    deadline = request.deadline
    return ReplayRequest(
        id=request.id,
        number=number,
        prompt=tuple(range(part.start + shift, part.stop + shift) for part in request.prompt),
        output=request.output,
        n=request.n,
        priority=request.priority,
        tenant=request.tenant,
        cache_salt=request.cache_salt,
        deadline=deadline + request.at if is_first and deadline is not None else deadline,
        at=request.at if is_first else None,
        follows=follows,
        after=0.0 if is_first else request.at,
    )
