"""What counts as served well."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceLevel:
    """The latencies that a request must meet to count as served well (goodput); ``None``: any."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2e_ms: float | None = None

    @property
    def has_limits(self) -> bool:
        """Whether there is one at all; without, there is no goodput."""
        return self != ServiceLevel()
