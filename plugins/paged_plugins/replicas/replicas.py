"""Slot ``replicas``: the client of several engines that serve the same model."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

from paged_core.client.engine_client import ClientState, EngineClient


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaHealth:
    """State of one of several engines."""

    number: int
    state: ClientState
    """``draining``: it takes no new requests, or has ended and waits to be started."""
    reason: str | None = None
    """Why it is not ready."""
    num_unfinished: int = 0
    """Requests that it serves."""
    num_routed: int = 0
    """Requests that it was given so far."""


class Replicas(EngineClient):
    """Serves requests on engines that it starts, restarts and chooses between.

    The factory is called with the options and a :class:`~paged_core.client.choice.ClientContext`.
    Where the options ask for a single engine, it may return ``context.single()`` instead.
    """

    @abstractmethod
    def replicas(self) -> list[ReplicaHealth]:
        """Return how each engine is, in the order of their numbers; none is asked."""

    @abstractmethod
    async def drain_replica(self, number: int, /) -> None:
        """Give an engine no more requests, wait until those that it has have ended, and end it.

        It waits while this one, or the last other one, is being started. Cancelling this before it
        has ended gives it requests again.

        Raises:
            RequestError: there is no such replica, or it or no other one takes requests.
            EngineError: it was lost meanwhile; what could be served again is, elsewhere.
        """

    @abstractmethod
    async def start_replica(self, number: int, /) -> None:
        """Start an engine that was drained; return when it takes requests.

        Raises:
            RequestError: there is no such replica, or it was not drained.
            EngineError: it cannot be started.
        """
