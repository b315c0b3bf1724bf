"""Clocks: what an engine measures arrivals, deadlines and latencies on."""

from __future__ import annotations

import time

from paged_core.interfaces.executor import Clock

__all__ = ["Clock", "SystemClock", "VirtualClock"]


class SystemClock:
    """The time of this machine."""

    __call__ = staticmethod(time.monotonic)

    def sleep(self, seconds: float, /) -> None:
        """Wait."""
        time.sleep(seconds)


class VirtualClock:
    """Time that passes only when something says so: a simulated step, or a sleep.

    Args:
        now: seconds that it shows at first.
    """

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float, /) -> None:
        """Move on at once; by nothing, if ``seconds`` is negative."""
        self.now += max(0.0, seconds)
