"""Slot ``router``: which replica of a cluster serves a request."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from paged_core.request import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterContext:
    """What the factory of a router gets beside its options."""

    num_replicas: int
    block_size: int
    num_blocks: int
    """Blocks of the cache of each replica."""
    seed: int


class ReplicaLoad(Protocol):
    """What a router may know of a replica when a request arrives: what a gateway sees of it."""

    @property
    def num_requests(self) -> int:
        """Requests that were routed to it and have not ended."""

    @property
    def num_tokens(self) -> int:
        """Tokens of their prompts, and of their answers so far."""


class Router(ABC):
    """Chooses a replica for each request, in the order of their arrival.

    What it remembers is bounded by the replicas, their blocks and the requests that have not ended.
    Its choices follow from what it was told and from the seed, so that runs can be repeated.
    """

    @abstractmethod
    def route(self, request: Request, session: str, replicas: Sequence[ReplicaLoad], /) -> int:
        """Return the number of the replica that serves ``request``.

        Args:
            session: the conversation or user that it belongs to; may be empty.
        """

    def finished(self, request: Request, replica: int, /) -> None:  # noqa: B027 - few need it
        """A request that was routed to ``replica`` has ended, or was refused by it."""


@dataclass(slots=True)
class Load:
    """The requests of a replica, as far as they are known outside of it."""

    num_requests: int = 0
    """That were routed to it and have not ended."""
    num_tokens: int = 0
    """Of their prompts, and of their answers so far."""


def __getattr__(name: str) -> type[RouterContext]:
    """Accept the name that :class:`RouterContext` had in 0.1."""
    if name != "RouterParts":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    message = f"{__name__}.RouterParts is now RouterContext"
    warnings.warn(message, DeprecationWarning, stacklevel=2)
    return RouterContext
