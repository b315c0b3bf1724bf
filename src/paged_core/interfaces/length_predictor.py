"""Slot ``length_predictor``: how many tokens a request is expected to generate."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from paged_core.request import Request


@dataclass(frozen=True, slots=True)
class ExpectedLength:
    """Tokens that each sequence of a request is expected to generate."""

    tokens: float
    """Mean, above 0; it may be more than ``max_tokens``."""
    deviation: float = 0.0
    """Standard deviation, in tokens; 0: it is certain."""


class LengthPredictor(ABC):
    """Predicts lengths for policies, of which each engine's ask the same one.

    One that learns is an :class:`~paged_core.interfaces.observer.Observer`, too: the engine tells
    it of each request as it tells other observers.
    """

    learns: bool = False
    """True if the answer for a request may change while the request waits."""

    @abstractmethod
    def expect(self, request: Request, /) -> ExpectedLength | None:
        """Return how many tokens a request will generate; ``None``: no more is known than its
        ``max_tokens``.

        It follows from the request and from what ended before; asking changes nothing.
        """
