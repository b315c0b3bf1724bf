"""Ends a test in which one call of a component does not return, and says where it is stuck."""

from __future__ import annotations

import linecache
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, thread_time
from types import FrameType
from typing import Any

import hypothesis
import psutil

_KIT = str(Path(__file__).parent)
_HYPOTHESIS = str(Path(hypothesis.__file__).parent)
_TICK = 0.25
"""Seconds between two looks at the stack."""
_WAITING = 15
"""Seconds that a call may wait at most, by the clock of :class:`_WaitingTime`."""
_SLOWEST = 1 / 8
"""What a second of waiting counts at least, however busy the machine is."""
_AT_WORK = 0.05
"""Seconds that child processes compute in a second at least, if they are at work."""


class CallDoesNotReturn(BaseException):
    """A call of a component has taken too long.

    No ``Exception``: components and engines do not catch it, and Hypothesis shrinks nothing.
    """


@contextmanager
def watched_calls(seconds: float) -> Iterator[None]:
    """Raise in any call from the kit into other code that takes too long.

    Where there are no interval timers (Windows), or in another thread than the main one, nothing is
    watched: there only the bounds on steps remain.

    Args:
        seconds: of processor time of this thread. A call that waits may take four times as long,
            15 s at most, in which the processors of the machine are idle; on a busy machine, and
            while child processes compute, such as a compiler, up to eight times that.

    Raises:
        CallDoesNotReturn: in the call; the message names it, and the line at which it is.
    """
    in_main = threading.current_thread() is threading.main_thread()
    if not (in_main and hasattr(signal, "setitimer")):
        yield
        return
    before = signal.signal(signal.SIGALRM, _CallWatch(seconds))
    left, interval = signal.setitimer(signal.ITIMER_REAL, _TICK, _TICK)
    started = monotonic()
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if left:  # the timer of another, such as pytest-timeout, goes on
            left = max(0.01, left - (monotonic() - started))
            signal.setitimer(signal.ITIMER_REAL, left, interval)


@contextmanager
def described_by(describe: Callable[[], str]) -> Iterator[None]:
    """Have ``describe`` say, in a note of the error, what the calls inside were about.

    It is called where the call is stuck; whatever it raises is said instead.
    """
    watch = signal.getsignal(signal.SIGALRM) if hasattr(signal, "SIGALRM") else None
    if not isinstance(watch, _CallWatch):
        yield
        return
    before, watch.describe = watch.describe, describe
    try:
        yield
    finally:
        watch.describe = before


class _CallWatch:
    """Looks at the stack at every tick: is the kit still waiting for the same call?"""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._waiting = min(4 * seconds, _WAITING)
        self._since: dict[FrameType, _Moment] = {}
        """Calls that had not returned at the last tick, and when they were first seen."""
        self._waiting_time = _WaitingTime()
        self._spent = 0.0
        """Processor time that the looks themselves have taken."""
        self._is_looking = False
        self.describe: Callable[[], str] | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self._is_looking:
            return  # on a busy machine a look may take longer than a tick
        self._is_looking, began = True, thread_time()
        try:
            self._look(frame, began - self._spent)
        finally:
            self._spent += thread_time() - began
            self._is_looking = False

    def _look(self, frame: FrameType | None, computed: float) -> None:
        now = _Moment(monotonic(), computed, self._waiting_time.read(computed))
        calls = _calls_from_kit(frame)
        self._since = {call: self._since.get(call, now) for call in calls}
        for call, then in self._since.items():
            computed, waited = now.computed - then.computed, now.waited - then.waited
            if computed >= self._seconds or waited >= self._waiting:
                self._since = {}
                raise self._error(frame, call, now.passed - then.passed)

    def _error(self, frame: FrameType | None, call: FrameType, seconds: float) -> CallDoesNotReturn:
        error = CallDoesNotReturn(
            f"{_name(call)} has not returned after {seconds:.0f} s" + _where(frame, call)
        )
        if self.describe is not None:
            try:
                error.add_note(self.describe())
            except Exception as other:  # noqa: BLE001 - what it looks at is being changed
                error.add_note(f"what waits cannot be said: {type(other).__name__}: {other}")
        return error


@dataclass(frozen=True, slots=True)
class _Moment:
    """Readings of three clocks, in seconds."""

    passed: float
    computed: float
    """By this thread."""
    waited: float


class _WaitingTime:
    """A clock of the seconds in which this thread waits and processors are idle.

    What it waits for may itself wait for a processor: on a busy machine, and while child processes
    compute, the clock is up to eight times slower.
    """

    def __init__(self) -> None:
        self._waited = 0.0
        self._passed, self._computed = monotonic(), thread_time()
        self._idle = _idle_seconds()
        self._children: float | None = None
        """Processor time at the last look; they are looked at where this thread waits."""

    def read(self, computed: float) -> float:
        """Return the seconds until now, when this thread has computed so long."""
        passed, idle = monotonic(), _idle_seconds()
        took = max(passed - self._passed, 1e-6)
        waited = max(0.0, took - (computed - self._computed))
        if waited > took / 2:
            are_at_work = self._are_children_at_work(took)
            share = 0 if are_at_work else (idle - self._idle) / took / (psutil.cpu_count() or 1)
            self._waited += waited * min(1, max(_SLOWEST, share))
        self._passed, self._computed, self._idle = passed, computed, idle
        return self._waited

    def _are_children_at_work(self, took: float) -> bool:
        """Whether child processes have computed since the last look; at first it is assumed."""
        before, self._children = self._children, _seconds_of_children()
        return before is None or self._children - before >= _AT_WORK * took


def _idle_seconds() -> float:
    """Time that the processors of this machine have spent idle, added up."""
    times = psutil.cpu_times()
    return times.idle + getattr(times, "iowait", 0.0)


def _seconds_of_children() -> float:
    """Processor time of child processes, those that have ended included."""
    times = os.times()
    total = times.children_user + times.children_system
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            own = child.cpu_times()
            total += own.user + own.system
    return total


def _calls_from_kit(frame: FrameType | None) -> list[FrameType]:
    """The calls on the stack that the kit made into other code, the innermost first."""
    calls = []
    while frame is not None and (caller := frame.f_back) is not None:
        path = frame.f_code.co_filename
        if caller.f_code.co_filename.startswith(_KIT) and not path.startswith((_KIT, _HYPOTHESIS)):
            calls.append(frame)
        frame = caller
    return calls


def _where(frame: FrameType | None, call: FrameType) -> str:
    """The innermost lines at which a stuck call is."""
    lines: list[str] = []
    while frame is not None and len(lines) < 4:
        code = frame.f_code
        number = frame.f_lineno or code.co_firstlineno  # None between two lines
        text = linecache.getline(code.co_filename, number).strip()
        lines.append(f"{Path(code.co_filename).name}:{number} in {_name(frame)}: {text}")
        frame = None if frame is call else frame.f_back
    return "".join(f"\n  at {line}" for line in lines)


def _name(frame: FrameType) -> str:
    owner: Any = frame.f_locals.get("self")
    name = frame.f_code.co_name
    return f"{type(owner).__name__}.{name}()" if owner is not None else f"{name}()"
