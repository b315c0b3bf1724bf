"""One request of a workload with those that follow it, and the content of its prompt."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice

MOST_FAMILY = 10_000
"""Requests that follow one first request of a drawn workload or of a file, directly or not."""
FIRST_OWN_ID = 10**15
"""Content ids from here on are those of prompts given by their length alone. No range that is
written in a file reaches them, and no drawn workload."""


Part = range | tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadRequest:
    """Content of one request, its arrival, and the requests that follow its answer.

    Content is given as content ids, in ranges where they are consecutive, so that two prompts share
    exactly the ids that they have in common; :func:`token_ids` makes token ids of them.
    """

    id: str
    """Unique in the workload."""
    at: float = 0.0
    """Seconds from the start of the workload; for one that follows another, seconds from the end
    of that one (think time)."""
    prompt: tuple[Part, ...]
    """Content ids, in parts, none of them empty. One that follows another gives only
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

    def shifted(self, shift: int) -> tuple[Part, ...]:
        """Return ``prompt`` with so much added to all content ids."""
        return tuple(
            range(part.start + shift, part.stop + shift)
            if isinstance(part, range)
            else tuple(each + shift for each in part)
            for part in self.prompt
        )

    def links(self) -> Iterator[tuple[WorkloadRequest, str | None]]:
        """Yield it and all that follow it, each before its followers, and the id of the one that
        each follows."""
        pending: list[tuple[WorkloadRequest, str | None]] = [(self, None)]
        while pending:
            request, follows = pending.pop()
            yield request, follows
            pending += [(each, request.id) for each in reversed(request.followers)]

    def family(self) -> Iterator[WorkloadRequest]:
        """Yield it and all that follow it, each before its followers."""
        return (request for request, _ in self.links())

    def whole_prompts(self) -> Iterator[tuple[WorkloadRequest, int]]:
        """Yield it and all that follow it, with the tokens of the whole prompt of each."""
        ends: dict[str | None, int] = {None: 0}
        for request, follows in self.links():
            length = ends[follows] + request.num_new
            ends[request.id] = length + request.output
            yield request, length

    def first(self, most: int) -> WorkloadRequest:
        """Return it with so many of its family, in their order; it alone if ``most`` is 1."""
        return linked(islice(self.links(), most))[0]


def linked(requests: Iterable[tuple[WorkloadRequest, str | None]]) -> list[WorkloadRequest]:
    """Return the requests that follow no other, each with its followers, in the given order.

    Args:
        requests: each with the id of the one that it follows, which stands before it.

    Raises:
        ValueError: it does not.
    """
    followers: dict[str | None, list[WorkloadRequest]] = {None: []}
    for request, follows in reversed(list(requests)):
        below = tuple(reversed(followers.pop(request.id, ())))
        followers.setdefault(follows, []).append(replace(request, followers=below))
    found = followers.pop(None)
    if followers:
        raise ValueError(f"a request follows {next(iter(followers))!r}, which stands not before it")
    return found[::-1]


class ContentIds:
    """Hands out content ids that nothing else has.

    Args:
        first: the first of them.
    """

    def __init__(self, first: int = 0) -> None:
        self._next = first

    def take(self, count: int) -> range:
        """Return so many of them."""
        taken = range(self._next, self._next + count)
        self._next = taken.stop
        return taken


def token_ids(parts: Iterable[Part], vocab_size: int | None) -> list[int]:
    """Return a token id for each content id of ``parts``.

    Args:
        vocab_size: token ids are below it, and look random: the finalizer of SplitMix64 (Steele,
            Lea and Flood, "Fast splittable pseudorandom number generators", 2014) of the content
            id. ``None``: any token id is served, so that the content ids themselves are returned.
    """
    ids = list(chain.from_iterable(parts))
    if vocab_size is None:
        return ids
    import numpy as np

    mixed = np.array(ids, dtype=np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    found: list[int] = ((mixed ^ (mixed >> np.uint64(31))) % np.uint64(vocab_size)).tolist()
    return found
