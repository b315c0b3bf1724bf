"""Calls of a component, watched: their instructions, the memory they leave, what they ask."""

from __future__ import annotations

import _socket
import gc
import os
import random
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from datetime import date
from functools import partial
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE
from itertools import count
from math import inf
from subprocess import Popen
from threading import Condition, Thread, get_ident
from types import FrameType, ModuleType
from typing import Any

from paged_testing.shared import check_shared, shared_state
from paged_testing.telling import modules, told
from paged_testing.work import WORK_FILE, Work

_OURS = ("paged_core", "paged_testing", "paged_backends", "paged_plugins", "paged_policies")
_LOGS = ("logging", "structlog")
"""Packages that may look at the clock on behalf of any code."""
_CLOCKS = {
    *(getattr(time, f"{name}{unit}") for name in ("time", "monotonic") for unit in ("", "_ns")),
    *(time.perf_counter, time.perf_counter_ns, time.process_time, time.process_time_ns),
}
_DATES = ("now", "utcnow", "today")
_GLOBAL_RANDOM = random.random.__self__  # type: ignore[attr-defined]


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
    """Return the number of bytecode instructions that a call takes, in its thread.

    A built-in that code of the package calls counts as one for each item that it goes through.

    Args:
        package: whose instructions count, with those of libraries that it calls; ``None``: all.
        most: after so many it is stopped.
        everywhere: whether instructions of all other code count, too.
    """
    count, work_before, thread_before = 0, Work.items, Work.thread

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
        Work.thread = get_ident()
        try:
            function()
        except _TooMany:
            pass
        finally:
            sys.settrace(before)
            Work.thread = thread_before
    return count + Work.items - work_before


def items(function: Callable[[], object], package: str) -> int:
    """Return how many items code of C goes through in a call, in the place of a package."""
    before = Work.items
    with told(package):
        function()
    return Work.items - before


_BYTES_A_USE = 4
"""Bytes that a use may leave, on the average."""
_IN_TURNS = 12
"""After so many uses they are alike again, as memory is where it is measured."""
_MEASURES, _MORE_MEASURES = 10, 5
"""Times that growth must be seen one after the other: after a few uses, and after many."""


def growth(
    use: Callable[[int], object], num_uses: int, package: str | None, most: float = inf
) -> tuple[int, float, float]:
    """Return bytes that uses which have ended leave, and instructions of one before and after.

    Args:
        use: one use, of a number of its own.
        package: whose instructions count; ``None``: they are not counted.
        most: bytes that are no buffer, which is emptied at times; they are looked at after many
            uses alone.

    Raises:
        AssertionError: more uses leave more and more, or they change what modules or classes keep.
    """
    numbers = count()

    def go_on(times: int) -> None:
        for _ in range(times):
            use(next(numbers))

    def cost() -> float:
        return instructions(partial(go_on, 4), package) / 4 if package else 0.0

    go_on(num_uses // 4)
    before, shared = cost(), shared_state(package)
    few = _IN_TURNS if num_uses >= 8 * _IN_TURNS else max(2, num_uses // 8)
    turns = max(2, -(-_IN_TURNS // few))
    with memory_traced() as allocated:
        last = 0

        def left(times: int) -> int:
            nonlocal last
            go_on(times)
            before, last = last, allocated()
            return last - before

        left(2 * few)
        grown, more = left(num_uses), list[int]()
        to_come = [few] * (_MEASURES if grown < most else 0) + [num_uses] * _MORE_MEASURES
        is_growing = grown > _BYTES_A_USE * num_uses
        while is_growing:
            assert to_come, (
                f"{num_uses} uses that have ended still take {grown} bytes, those after them "
                f"{more}: what it keeps grows for ever; "
                f"{_allocating(partial(go_on, num_uses), package)}"
            )
            times = to_come.pop(0)
            more.append(left(times))
            if times == num_uses:
                is_growing = more[-1] > _BYTES_A_USE * times
            else:  # in fewer uses, what is not the component's is more and less by turns
                is_growing = len(more) < turns or sum(more[-turns:]) > 0
        grown = min([grown, *more])
    check_shared(shared, package, "its uses change")
    return grown, before, cost()


def _allocating(function: Callable[[], object], package: str | None) -> str:
    """Say in which line of a package a call allocates the most that is still there after it."""
    before = tracemalloc.take_snapshot()
    function()
    gc.collect()
    lines = tracemalloc.take_snapshot().compare_to(before, "lineno")
    files = {getattr(sys.modules[name], "__file__", None) for name in modules(package)}
    own = [each for each in lines if each.traceback[0].filename in files and each.size_diff > 0]
    place = (own or lines)[0].traceback[0]
    return f"the line that allocates the most of it is {place.filename}:{place.lineno}"


def bytes_left(function: Callable[[], object], warm_up: Callable[[], object] = int) -> int:
    """Return how much more memory is allocated after a call than before it, in tensors, too.

    Args:
        warm_up: called first; what it has left may go in the call.
    """
    with memory_traced() as allocated:
        warm_up()
        before = allocated()
        function()
        return allocated() - before


@contextmanager
def memory_traced() -> Iterator[Callable[[], int]]:
    """Trace what is allocated; the function returns the bytes that still are, in tensors, too."""
    tracemalloc.start()
    try:
        yield lambda: _in_tensors() + tracemalloc.get_traced_memory()[0]
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


_MOST_TURNS = 100_000
"""Lines after which other threads are let go on."""


@contextmanager
def threads_in_turns(package: str) -> Iterator[None]:
    """Let threads take turns as often as Python can, and those started meanwhile after most lines
    of a package's code.
    """
    lines = count()

    def trace(frame: FrameType, event: str, _: object) -> Callable[..., Any] | None:
        if event == "call" and package_of(frame) != package:
            return None
        if next(lines) < _MOST_TURNS:
            time.sleep(0)
        return trace

    before = sys.getswitchinterval(), threading.gettrace()
    sys.setswitchinterval(1e-5)
    threading.settrace(trace)
    try:
        yield
    finally:
        sys.setswitchinterval(before[0])
        threading.settrace(before[1])


@contextmanager
def _profiled(profile: Callable[[FrameType, str, Any], None]) -> Iterator[None]:
    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(before)


def chance_watched(package: str) -> AbstractContextManager[None]:
    """Check that code of a package asks no clock, draws no number without a seed and, but for what
    constructors open, waits for nothing.

    Raises:
        AssertionError: it did; the message names each line.
    """
    chance = "runs cannot be repeated; decisions follow from the calls, `now` and the seed alone"
    return _refused(package, {_chance: chance, _waits(package): "the engine waits meanwhile"})


def waits_watched(
    package: str, who: str, *, files: bool = True, in_coroutines: bool = False
) -> AbstractContextManager[None]:
    """Check that code of a package waits for nothing: no sleep, socket, program or thread.

    Args:
        who: waits meanwhile, such as ``the engine``.
        files: whether files are looked at, too; what a constructor opens is not.
        in_coroutines: whether only coroutines are, and what they call.

    Raises:
        AssertionError: it did; the message names each line.
    """
    return _refused(package, {_waits(package, files, in_coroutines): f"{who} waits meanwhile"})


_Asks = Callable[[FrameType, str, Any], str | None]
"""Says what an event is, if it is to be refused."""


def _waits(package: str, files: bool = True, in_coroutines: bool = False) -> _Asks:
    def waits(frame: FrameType, event: str, called: Any) -> str | None:
        if (found := _wait(frame, event, called)) is None or (found == _FILES and not files):
            return None
        callers = list(_callers(frame))
        own = [each.f_code for each in callers if package_of(each) == package]
        if in_coroutines:
            counts = any(code.co_flags & _COROUTINE for code in own)
        else:
            counts = all(code.co_name != "__init__" for code in own)
        return found if counts and all(c.f_code not in _BRIEF_WAITS for c in callers) else None

    return waits


@contextmanager
def _refused(package: str, asked: Mapping[_Asks, str]) -> Iterator[None]:
    """Check that code of a package, or what it calls, does nothing of some kinds, with reasons."""
    found: dict[str, str] = {}

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        for asks, why in asked.items():
            if (what := asks(frame, event, argument)) is None:
                continue
            of = (each for each in _callers(frame) if package_of(each) in (package, *_OURS, *_LOGS))
            if (caller := next(of, None)) and package_of(caller) == package:
                found[f"{_place(caller)} {what}"] = why

    gc.collect()  # or finalizers of other tests' objects would run inside calls of the package
    gc.disable()
    try:
        with _profiled(profile):
            yield
    finally:
        gc.enable()
    assert not found, "; ".join(f"{place}: {why}" for place, why in found.items())


def _callers(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield a frame, and those that it was called from."""
    while frame is not None:
        yield frame
        frame = frame.f_back


_FILES = "opens a file"
_COROUTINE = CO_COROUTINE | CO_ASYNC_GENERATOR
_WAITS: Mapping[Any, str] = {
    **{time.sleep: "sleeps", os.system: "runs a program", open: _FILES},
    **dict.fromkeys((_socket.getaddrinfo, _socket.gethostbyname), "looks up a host"),
    **dict.fromkeys((Condition.wait.__code__, Thread.join.__code__), "waits for a thread"),
    **dict.fromkeys((Popen.wait.__code__, Popen.communicate.__code__), "waits for a program"),
}
"""Functions of C, and code of functions in Python."""
_BRIEF_WAITS = (Thread.start.__code__, ThreadPoolExecutor.submit.__code__)
_ON_SOCKETS = {"connect", "recv", "recv_into", "recvfrom", "send", "sendall", "sendmsg", "_accept"}


def _wait(frame: FrameType, event: str, called: Any) -> str | None:
    """Say what a call waits for; ``None``: it waits for nothing."""
    if event != "c_call":
        return _WAITS.get(frame.f_code) if event == "call" else None
    owner = getattr(called, "__self__", None)
    if isinstance(owner, _socket.socket) and called.__name__ in _ON_SOCKETS:
        waits = owner.gettimeout() != 0 and owner.type != _socket.SOCK_DGRAM
        return "waits for a socket" if waits else None
    return _WAITS.get(called) if isinstance(owner, ModuleType) else None


def _chance(frame: FrameType, event: str, called: Any) -> str | None:
    """Say what makes a call of a built-in one of chance; ``None``: it is none."""
    if event != "c_call":
        return None
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


def _place(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_qualname}"
