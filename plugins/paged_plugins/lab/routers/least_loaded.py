"""The replica with the fewest requests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from paged_core.component import ComponentSettings
from paged_core.request import Request
from paged_plugins.lab.router import ReplicaLoad, Router, RouterParts


class LeastLoadedSettings(ComponentSettings):
    """Options of :class:`LeastLoadedRouter`."""

    name: Literal["least_loaded"] = "least_loaded"


class LeastLoadedRouter(Router):
    """Fewest requests that have not ended, then fewest tokens; equal replicas take turns."""

    def __init__(self, options: LeastLoadedSettings, parts: RouterParts, /) -> None:
        self._choice = LeastLoaded(parts.num_replicas)

    def route(self, request: Request, session: str, replicas: Sequence[ReplicaLoad], /) -> int:
        return self._choice.among(range(len(replicas)), replicas)


class LeastLoaded:
    """Chooses the least loaded of some replicas, among equals the one after the last choice."""

    def __init__(self, num_replicas: int) -> None:
        self._num_replicas = num_replicas
        self._next = 0
        """Where the search for an equal begins."""

    def among(self, numbers: Iterable[int], replicas: Sequence[ReplicaLoad]) -> int:
        """Return one of ``numbers``, which are not empty. O(n), with one look at each replica."""
        numbers = list(numbers)
        counts = [replicas[number].num_requests for number in numbers]
        fewest = min(counts)
        equal = [number for number, count in zip(numbers, counts, strict=True) if count == fewest]
        if len(equal) > 1:
            tokens = [replicas[number].num_tokens for number in equal]
            fewest = min(tokens)
            equal = [number for number, count in zip(equal, tokens, strict=True) if count == fewest]
        start = self._next
        chosen = next((number for number in equal if number >= start), equal[0])
        self._next = (chosen + 1) % self._num_replicas
        return chosen
