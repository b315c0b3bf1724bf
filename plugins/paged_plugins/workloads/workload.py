"""A workload: requests in the order in which they arrive."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from paged_plugins.workloads.request import WorkloadRequest


class Workload(Protocol):
    """Something that draws requests. Equal seeds draw equal requests, in every process."""

    @property
    def name(self) -> str:
        """What tables call it."""

    def draw(self, seed: int, /) -> Iterator[WorkloadRequest]:
        """Yield the requests that follow no other, by their time ``at``, one at a time: memory
        does not grow with the length of the workload."""


@dataclass(frozen=True, slots=True)
class ListedWorkload:
    """The same requests for every seed."""

    name: str
    requests: Sequence[WorkloadRequest]
    """By their time ``at``."""

    def draw(self, seed: int, /) -> Iterator[WorkloadRequest]:
        """Yield them; ``seed`` changes nothing."""
        return iter(self.requests)
