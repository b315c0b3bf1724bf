"""Many times, of which the mean and percentiles are kept in bounded memory."""

from __future__ import annotations

from dataclasses import dataclass, field

from paged_plugins.lab.measures.percentiles import percentiles
from paged_plugins.lab.runs.time_histogram import bucket


@dataclass(slots=True)
class Latency:
    """A histogram of times with their number and sum; percentiles are within 0.5%."""

    counts: dict[int, int] = field(default_factory=dict)
    """How many times fell into each bucket, see :mod:`paged_plugins.lab.runs.time_histogram`."""
    num: int = 0
    total: float = 0.0

    def add(self, seconds: float) -> None:
        """Add a time."""
        number = bucket(seconds)
        self.counts[number] = self.counts.get(number, 0) + 1
        self.num += 1
        self.total += seconds

    def measures(self, kind: str) -> dict[str, float]:
        """Return mean and percentiles in milliseconds, by name; none if there are no times."""
        mean = {f"{kind}_ms_mean": 1e3 * self.total / self.num} if self.num else {}
        return mean | percentiles(kind, self.counts)
