"""Pauses before an engine that was lost is started again."""

from __future__ import annotations

from time import monotonic

_PAUSES = (0.2, 1.0, 3.0, 10.0, 30.0)
"""Seconds before each start that follows a failure; after the last one, no more is tried."""
_STEADY_SECONDS = 60.0
"""An engine that served for so long begins with the first pause."""


class Backoff:
    """Counts failures in a row: engines that were lost, and starts that failed."""

    def __init__(self) -> None:
        self._num_failures = 0
        self._ready_at: float | None = None

    def is_ready(self) -> None:
        """An engine takes requests."""
        self._ready_at = monotonic()

    def pause(self) -> float | None:
        """One was lost, or did not start: return the seconds to wait; ``None``: give it up."""
        if self._ready_at is not None and monotonic() - self._ready_at > _STEADY_SECONDS:
            self._num_failures = 0
        self._ready_at = None
        self._num_failures += 1
        return None if self._num_failures > len(_PAUSES) else _PAUSES[self._num_failures - 1]
