"""A clock that others who use the machine do not disturb."""

from __future__ import annotations

from time import process_time


class ProcessorClock:
    """The time that the processor worked for this process; what it sleeps is added at once.

    It is the time of a machine that nothing else uses, if the process works in one thread: a model
    with ``threads=1``.
    """

    def __init__(self) -> None:
        self._slept = 0.0

    def __call__(self) -> float:
        return process_time() + self._slept

    def sleep(self, seconds: float, /) -> None:
        """Move on at once; by nothing, if ``seconds`` is negative."""
        self._slept += max(0.0, seconds)
