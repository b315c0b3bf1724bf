"""Calls of a component, watched: their instructions, the memory they leave, what they ask."""

from __future__ import annotations

import gc
import os
import random
import sys
import time
import tracemalloc
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from datetime import date
from functools import partial
from itertools import count
from math import inf
from statistics import median
from types import FrameType
from typing import Any

from paged_testing.work import WORK_FILE, Work, told

_OURS = ("paged_core", "paged_testing", "paged_backends", "paged_plugins", "paged_policies")
_LOGS = ("logging", "structlog")
"""Packages that may look at the clock on behalf of any code."""
_CLOCKS = {
    *(getattr(time, f"{name}{unit}") for name in ("time", "monotonic") for unit in ("", "_ns")),
    *(time.perf_counter, time.perf_counter_ns, time.process_time, time.process_time_ns),
}
_DATES = ("now", "utcnow", "today")
_GLOBAL_RANDOM = random.random.__self__  # type: ignore[attr-defined]


class Watched(int):
    """An integer that counts its comparisons and hashes, inside built-ins too.

    They and its sums are methods in Python, so :func:`instructions` counts what they execute.
    """

    touched = 0

    def __eq__(self, other: object) -> bool:
        Watched.touched += 1
        return int(self) == other

    def __lt__(self, other: int) -> bool:
        Watched.touched += 1
        return int(self) < int(other)

    def __gt__(self, other: int) -> bool:
        Watched.touched += 1
        return int(self) > int(other)

    def __add__(self, other: Any) -> Any:
        total = int(self) + other
        return Watched(total) if isinstance(total, int) else total

    __radd__ = __add__

    def __neg__(self) -> Watched:
        return Watched(-int(self))

    def __hash__(self) -> int:
        Watched.touched += 1
        return hash(int(self))


class _TooMany(BaseException):
    """The instructions are counted no further."""


def package_of(frame: FrameType) -> str:
    """Return the top-level package of a frame's code."""
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def instructions(
    function: Callable[[], object],
    package: str | None = None,
    *,
    most: float = inf,
    everywhere: bool = False,
) -> int:
    """Return the number of bytecode instructions that a call takes.

    A built-in that code of the package calls counts as one for each item that it goes through.

    Args:
        package: whose instructions count, with those of libraries that it calls; ``None``: all.
        most: after so many it is stopped.
        everywhere: whether instructions of all other code count, too.
    """
    count, work_before = 0, Work.items

    def counts(frame: FrameType) -> bool:
        name, caller = package_of(frame), frame.f_back
        while caller is not None and caller.f_code.co_filename == WORK_FILE:
            caller = caller.f_back
        is_called = caller is not None and caller.f_trace is not None and name not in _OURS
        return everywhere or package is None or name == package or is_called

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        if event == "opcode":
            count += 1
            if count + Work.items - work_before > most:
                raise _TooMany
        elif event == "call":
            if frame.f_code.co_filename == WORK_FILE or not counts(frame):
                return None
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return trace

    before = sys.gettrace()
    with told(package):
        sys.settrace(trace)
        try:
            function()
        except _TooMany:
            pass
        finally:
            sys.settrace(before)
    return count + Work.items - work_before


def letters_scanned(function: Callable[[], object], package: str) -> int:
    """Return how many letters the methods of texts that code of a package calls look through."""
    scanned = 0

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal scanned
        text = getattr(argument, "__self__", None)
        if event != "c_call" or not isinstance(text, str) or package_of(frame) != package:
            return
        if argument.__name__ in ("strip", "lstrip", "rstrip"):
            scanned += len(text) - len(getattr(str, argument.__name__)(text))
        elif argument.__name__ not in ("startswith", "endswith"):  # these look at what is asked for
            scanned += len(text)

    with _profiled(profile):
        function()
    return scanned


def bytes_taken(calls: Iterable[Callable[[], object]]) -> float:
    """Return the bytes that calls allocate while they run, the median of their peaks."""
    peaks = []
    tracemalloc.start()
    try:
        for call in calls:
            before, _ = tracemalloc.get_traced_memory()
            tracemalloc.reset_peak()
            call()
            peaks.append(tracemalloc.get_traced_memory()[1] - before)
    finally:
        tracemalloc.stop()
    return median(peaks)


def growth(
    use: Callable[[int], object], num_uses: int, package: str | None
) -> tuple[int, float, float]:
    """Return bytes that uses which have ended leave, and instructions of one before and after.

    Args:
        use: one use, of a number of its own.
        package: whose instructions count; ``None``: they are not counted.
    """
    numbers = count()

    def go_on(times: int) -> None:
        for _ in range(times):
            use(next(numbers))

    def cost() -> float:
        return instructions(partial(go_on, 4), package) / 4 if package else 0.0

    go_on(num_uses // 4)
    before = cost()
    left = bytes_left(partial(go_on, num_uses), partial(go_on, num_uses // 4))
    return left, before, cost()


def bytes_left(function: Callable[[], object], warm_up: Callable[[], object] = int) -> int:
    """Return how much more memory is allocated after a call than before it, in tensors, too.

    Args:
        warm_up: called first; what it has left may go in the call.
    """
    before, after = bytes_after((warm_up, function))
    return after - before


def bytes_after(calls: Iterable[Callable[[], object]]) -> Generator[int, None, None]:
    """Yield how much memory is allocated after each of the calls, in tensors, too."""
    tracemalloc.start()
    try:
        for call in calls:
            call()
            yield _in_tensors() + tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def _in_tensors() -> int:
    """Return the bytes of the tensors that there are, after all that may go has gone."""
    gc.collect()
    sys._clear_type_cache()  # of names of attributes, of which libraries of C make new ones
    if (torch := sys.modules.get("torch")) is None:
        return 0
    held = {}
    for each in gc.get_objects():
        if issubclass(type(each), torch.Tensor) and each.layout is torch.strided:
            storage = each.untyped_storage()
            held[storage.data_ptr()] = storage.nbytes()
    return sum(held.values())


@contextmanager
def _profiled(profile: Callable[[FrameType, str, Any], None]) -> Iterator[None]:
    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(before)


@contextmanager
def chance_watched(package: str) -> Iterator[None]:
    """Check that code of a package asks no clock and draws no number without a seed.

    Raises:
        AssertionError: it did; the message names each line.
    """
    found: dict[str, None] = {}

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        caller: FrameType | None = frame
        if event != "c_call" or not (asked := _chance(frame, argument)):
            return
        while caller and package_of(caller) not in (package, *_OURS, *_LOGS):
            caller = caller.f_back
        if caller and package_of(caller) == package:
            found[f"{_place(caller)} {asked}"] = None

    gc.collect()  # or finalizers of other tests' objects would run inside calls of the package
    gc.disable()
    try:
        with _profiled(profile):
            yield
    finally:
        gc.enable()
    assert not found, (
        f"{'; '.join(found)}: runs cannot be repeated; decisions follow from the calls, `now` and "
        "the seed alone"
    )


def _chance(frame: FrameType, called: Any) -> str | None:
    """Say what makes a call of a built-in one of chance; ``None``: it is none."""
    owner, name = getattr(called, "__self__", None), getattr(called, "__name__", "")
    if owner is time:
        return f"asks the clock, time.{name}()" if called in _CLOCKS else None
    if isinstance(owner, type) and issubclass(owner, date) and name in _DATES:
        return f"asks the clock, {owner.__name__}.{name}()"
    unseeded = frame.f_code is random.Random.seed.__code__ and frame.f_locals["a"] is None
    is_global = owner is _GLOBAL_RANDOM or type(owner).__module__ == "numpy.random.mtrand"
    if is_global or unseeded or called is os.urandom:
        return "draws a random number without a seed"
    return None


def last_place(function: Callable[[], object], package: str) -> str | None:
    """Call again what has failed; return the line in which code of a package returned last."""
    last: str | None = None

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal last
        if event == "return" and package_of(frame) == package:
            last = _place(frame)

    with _profiled(profile):
        try:
            function()
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
    return last


def _place(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_qualname}"
