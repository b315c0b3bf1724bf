"""Slot ``router``: which of several replicas serves a request."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from paged_core.engine.contexts import Context
from paged_core.request import Request

VERSION = 2
"""Version of this interface."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterContext(Context):
    """Context that the factory of a router gets beside its options."""

    block_size: int
    """Tokens of a block of each replica."""
    seed: int


class ReplicaLoad(Protocol):
    """Load of a replica, as far as a router may know it when a request arrives.

    It is counted from the requests that were routed, not from what engines report, and not changed
    by a router. What a step in flight computes is not known before it ends.
    """

    @property
    def number(self) -> int:
        """By which the replica is known as long as it is there, and when it is back."""

    @property
    def num_requests(self) -> int:
        """Requests that were routed to it and have not ended."""

    @property
    def num_tokens(self) -> int:
        """Tokens of their prompts, and of their answers so far."""

    @property
    def num_routed(self) -> int:
        """Requests that were routed to it so far; one that joins begins with the fewest of all."""


class Router(ABC):
    """Chooses a replica for each request, in the order of their arrival.

    What it remembers is bounded by the replicas that are there, their blocks and the requests that
    have not ended. Its choices follow from what it was told and from the seed, so that runs can be
    repeated.
    """

    def joined(self, replica: int, num_blocks: int, /) -> None:  # noqa: B027 - few need it
        """A replica is there, with an empty cache of ``num_blocks`` blocks.

        It is new, or one that has left and is back. It need not take requests yet.
        """

    def left(self, replica: int, /) -> None:  # noqa: B027 - few need it
        """A replica that had joined is gone, and its cache with it."""

    @abstractmethod
    def route(self, request: Request, session: str, replicas: Mapping[int, ReplicaLoad], /) -> int:
        """Return the number of the replica that serves ``request``.

        Args:
            session: the conversation or user that it belongs to; may be empty.
            replicas: those that take requests now, by number and in that order; one or more, each
                of which has joined. One that is full, drains or does not answer is not among them.
        """

    def finished(self, request: Request, replica: int, /) -> None:  # noqa: B027 - few need it
        """A request that was routed to ``replica`` has ended there, or was refused by it.

        It is told once for each request that was routed, in any order, and may be so after
        :meth:`left`. A request that is served again is routed anew.
        """


BlockChange = tuple[str, Sequence[int]]
"""A change of what a prefix cache holds, and the content keys that it is about:

- ``"stored"``: these are held from now on, and were not before;
- ``"removed"``: these are held no more;
- ``"cleared"``: nothing is held; there are no keys.

A key is one of :func:`~paged_core.ids.content_digests`: of all tokens up to the end of a block and
of the request's ``cache_salt``, the same in every process. Equal prompts of other salts share no
block. Nothing else of a request counts.
"""


@runtime_checkable
class SupportsBlockEvents(Protocol):
    """A router that is told what the prefix cache of each replica holds, not only what was sent.

    Such a router makes its caller give each engine the observer ``block_events``. For each replica
    that has joined, the caller asks for ``report("block_events", since)``, with ``since`` 0 at
    first, after steps or at short intervals::

        report = await client.report("block_events", since)
        since = report["next"]
        router.blocks_changed(replica, report["events"])

    Nothing else is to be done about reports that were missed: where the events after ``since`` are
    no longer kept, ``events`` begins with ``cleared`` and goes on with all that is held. The number
    ``since`` belongs to one engine: it is 0 again after the replica has left and joined.
    """

    def blocks_changed(self, replica: int, changes: Iterable[BlockChange], /) -> None:
        """Note changes of the content of a replica's cache, in this order."""
