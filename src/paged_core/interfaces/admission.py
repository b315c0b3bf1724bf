"""Slot ``admission``: whether a request that arrives is served, refused, or held back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from paged_core.request import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Counts of what an engine serves when a request arrives, without that request."""

    num_waiting: int = 0
    """Requests that wait, those that are held back and those that were preempted included."""
    waiting_tokens: int = 0
    """Tokens of the prompts of these."""
    num_running: int = 0
    """Requests that run or are swapped out."""
    max_num_seqs: int | None = None
    """Sequences that may run at once; ``None``: there is no limit."""
    free_tokens: int = 0
    """Tokens for which blocks are free: cached ones that no request holds are among them."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A request is not served."""

    reason: str
    """Sentence for the client, without a full stop."""
    retry_after: float | None = None
    """Seconds after which the same request may be accepted; ``None``: not known, or never."""


@dataclass(frozen=True, slots=True)
class Held:
    """A request waits outside of the scheduler, and is not asked about again."""

    until: float
    """Seconds on the engine's clock; what has passed is no hold."""


Decision = Refused | Held | None
"""``None``: the scheduler gets the request at once."""


class Admission(ABC):
    """Decides over requests that an engine could serve, once each; one for each engine.

    One that learns is an :class:`~paged_core.interfaces.observer.Observer`, too: the engine tells
    it of steps and requests as it tells other observers.
    """

    @abstractmethod
    def decide(self, request: Request, load: Load, now: float, /) -> Decision:
        """Decide over a request that arrives ``now``, in seconds on the engine's clock.

        It follows from the calls, what was told, and ``now`` alone.
        """
