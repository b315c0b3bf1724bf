"""The load of a cluster over time, in a bounded number of samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paged_plugins.lab.router import ReplicaLoad


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSample:
    """The load at one time."""

    time: float
    """Seconds from the start of the run."""
    num_requests: int
    """That were routed and have not ended, over all replicas."""
    num_tokens: int
    """Of their prompts and their answers so far."""
    most_requests: int
    """Of the replica that has the most."""
    num_idle: int
    """Replicas without requests."""


class Timeline:
    """Samples at regular times. Once there are too many, every second one is dropped.

    Args:
        max_samples: kept at most, 2 or more; there are half as many at least, once there were more.
    """

    def __init__(self, max_samples: int) -> None:
        self.samples: list[LoadSample] = []
        self._max_samples = max_samples
        self._interval = 0.01
        self._due = 0.0

    def pass_to(self, now: float, replicas: Sequence[ReplicaLoad]) -> None:
        """Take a sample, if one is due."""
        if now < self._due:
            return
        counts = [replica.num_requests for replica in replicas]
        self.samples.append(
            LoadSample(
                time=now,
                num_requests=sum(counts),
                num_tokens=sum(replica.num_tokens for replica in replicas),
                most_requests=max(counts),
                num_idle=counts.count(0),
            )
        )
        if len(self.samples) > self._max_samples:
            del self.samples[1::2]
            self._interval *= 2
        self._due = self.samples[-1].time + self._interval
