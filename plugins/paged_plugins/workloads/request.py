"""One request of a workload, and those that follow it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadRequest:
    """What one request asks, when it arrives, and which requests follow its answer.

    Content is given as ranges of content ids, so that two prompts share exactly the ids that they
    have in common; :mod:`paged_plugins.workloads.content` makes token ids of them.
    """

    id: str
    """Unique in the workload."""
    at: float = 0.0
    """Seconds from the start of the workload; for one that follows another, seconds from the end
    of that one (think time)."""
    prompt: tuple[range, ...]
    """Content ids, a range for each part, none of them empty. One that follows another gives only
    what is new: its whole prompt is the other's prompt, its answer, and this."""
    output: int
    """Tokens that each of its sequences generates."""
    n: int = 1
    """Sequences that are sampled for it."""
    priority: int = 0
    """Lower is more urgent."""
    tenant: str = ""
    session: str = ""
    """The conversation or user that it belongs to, by which a router may keep it on one replica."""
    deadline: float | None = None
    """Seconds after its arrival by which it wants to be finished."""
    cache_salt: str | None = None
    followers: tuple[WorkloadRequest, ...] = ()
    """Requests that continue its prompt and answer (of its first sequence), once it has ended."""

    @property
    def num_new(self) -> int:
        """Tokens of ``prompt``."""
        return sum(map(len, self.prompt))

    def family(self) -> Iterator[WorkloadRequest]:
        """Yield it and all that follow it, each before its followers."""
        pending = [self]
        while pending:
            request = pending.pop()
            yield request
            pending += reversed(request.followers)

    def first(self, most: int) -> WorkloadRequest:
        """Return it with so many of its family, in their order; it alone if ``most`` is 1."""
        kept: dict[str, WorkloadRequest] = {}
        for request in reversed(list(islice(self.family(), most))):
            followers = (kept.get(each.id) for each in request.followers)
            kept[request.id] = replace(
                request, followers=tuple(each for each in followers if each is not None)
            )
        return kept[self.id]
