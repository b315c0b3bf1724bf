"""The time of a replay: steps of one length, or those of a simulation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from itertools import count

from paged_core.clock import Clock
from paged_core.engine_driver import IDLE_SECONDS
from paged_core.interfaces.observer import StepRecord
from paged_plugins.decisions.arrivals import Arrivals


class Timeline(ABC):
    """Counts steps, and says when they begin and end, in seconds from the start."""

    def __init__(self) -> None:
        self.step = 0
        """The next step."""

    @property
    @abstractmethod
    def start(self) -> float:
        """When the replay began, on the engine's clock."""

    @property
    def step_of(self) -> Callable[[float], int] | None:
        """Returns the first step at or after a time, where every step has its time."""
        return None

    @abstractmethod
    def now(self) -> float:
        """Return when the next step begins."""

    @abstractmethod
    def applied(self, at: float) -> float:
        """Return when tokens are there that the engine says it applied at ``at`` on its clock."""

    @abstractmethod
    def seconds(self, record: StepRecord) -> float:
        """Return the time that a step took."""

    def wait(self) -> None:  # noqa: B027
        """Let time pass after a step in which nothing could be planned, if steps alone do not."""

    @abstractmethod
    def skip(self, arrivals: Arrivals) -> bool:
        """Go to the next arrival, since nothing is to be done before; ``False``: there is none."""


class EqualSteps(Timeline):
    """Every step takes equally long, whatever it computes; the engine's clock is :meth:`now`.

    Args:
        seconds_per_step: how long.
        max_steps: the steps from which on nothing is of interest.
    """

    def __init__(self, seconds_per_step: float, max_steps: int) -> None:
        super().__init__()
        self._seconds = seconds_per_step
        self._last = max_steps

    @property
    def start(self) -> float:
        return 0.0

    @property
    def step_of(self) -> Callable[[float], int]:
        return self._step_of

    def now(self) -> float:
        return self.step * self._seconds

    def applied(self, at: float) -> float:
        return at + self._seconds

    def seconds(self, record: StepRecord) -> float:
        return self._seconds

    def skip(self, arrivals: Arrivals) -> bool:
        step = arrivals.next_step
        if step is not None:
            self.step = step
        return step is not None

    def _step_of(self, at: float) -> int:
        quotient = at / self._seconds
        if quotient >= self._last:
            return self._last
        nearest = max(0, int(quotient) - 1)  # the quotient is rounded
        return next(step for step in count(nearest) if step * self._seconds >= at)


class ClockTime(Timeline):
    """Steps take the time that passes on a clock meanwhile; steps that are skipped take none."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock
        self._start = clock()

    @property
    def start(self) -> float:
        return self._start

    def now(self) -> float:
        return self._clock() - self._start

    def applied(self, at: float) -> float:
        return at - self._start

    def seconds(self, record: StepRecord) -> float:
        return record.ended - record.now

    def wait(self) -> None:
        self._clock.sleep(IDLE_SECONDS)

    def skip(self, arrivals: Arrivals) -> bool:
        if arrivals.next_step is not None:
            self.step = arrivals.next_step
        elif arrivals.next_time is not None:
            self._clock.sleep(arrivals.next_time - self.now())
        else:
            return False
        return True
