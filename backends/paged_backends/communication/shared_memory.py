"""Component ``shm``: ranks of one machine exchange tensors on the CPU through shared memory.

The operations are C++ (``source/shared_memory.cpp``). Here the ranks meet, and a wait that takes
long is watched: for signals, ranks that end, and the deadline.
"""

from __future__ import annotations

import ctypes
import os
import sys
from ctypes import c_int, c_int64, c_uint32, c_void_p
from enum import IntEnum
from functools import cache
from pathlib import Path
from time import monotonic
from types import SimpleNamespace
from typing import Any

import psutil
from torch import Tensor

from paged_backends.communication.calls import (
    ALL_GATHER,
    ALL_REDUCE,
    BROADCAST,
    CODES,
    KINDS,
    call_text,
    check_tensor,
    rank_names,
)
from paged_backends.communication.rendezvous import Meeting, meet
from paged_backends.communication.settings import ShmSettings
from paged_backends.kernels.build import Build, CannotCompile, is_cached, library
from paged_backends.kernels.cpu.compiler import find_compiler
from paged_core.engine.contexts import CommunicatorContext
from paged_core.errors import ExecutorLost, SettingsError, UnsupportedModel
from paged_core.interfaces.communicator import Communicator

_BUILD = Build(
    name="shared-memory",
    sources=Path(__file__).parent / "source",
    units=("shared_memory.cpp",),
    flags=("-std=c++17", "-fPIC", "-shared", "-fvisibility=hidden", "-O3", "-w"),
)
_SLICED_FROM = 2 << 10
"""Bytes from which each rank adds up a part of the tensor: below, to meet again costs more."""
_MOST_RANKS = 32

_P = c_void_p
_FUNCTIONS: dict[str, tuple[list[Any], Any]] = {
    "create": ([c_int, c_int64], c_int),
    "join": ([c_int, c_int, c_int, c_int64, c_int64, c_int], _P),
    "leave": ([_P], None),
    "run": ([_P, c_int, c_int, c_int, _P, _P, c_int64], c_int),
    "go_on": ([_P], c_int),
    "missing": ([_P], c_uint32),
    "call_of": ([_P, c_int, _P], None),
    "give_up": ([_P, c_int64], c_int64),
}


@cache
def _load(path: str) -> Any:
    """Return the functions of the compiled library; a call releases Python's lock."""
    loaded, functions = ctypes.CDLL(path, use_errno=True), SimpleNamespace()
    for name, (arguments, result) in _FUNCTIONS.items():
        function = getattr(loaded, f"paged_core_{name}")
        function.argtypes, function.restype = arguments, result
        setattr(functions, name, function)
    return functions


class _Status(IntEnum):
    DONE, WAITING, LOST, DIFFERENT = range(4)


class _Verdict(IntEnum):
    """Why a group was given up."""

    LATE, ENDED, DIFFERENT, INTERRUPTED = range(1, 5)


_SAID = {
    _Verdict.LATE: "did not come within {:g} s: stopped, hung, or busy with something else",
    _Verdict.ENDED: "has ended, or left the group",
    _Verdict.DIFFERENT: "was asked for another operation than the others",
    _Verdict.INTERRUPTED: "was interrupted in an operation",
}


def unavailable_reason() -> str | None:
    """Return why not, or ``None``; nothing is compiled."""
    if sys.platform != "linux":
        return "it uses shared memory of Linux; communicator 'gloo' does not"
    compiler = find_compiler()
    if isinstance(compiler, CannotCompile) and not is_cached(_BUILD):
        return f"{compiler}; communicator 'gloo' needs none"
    return None


class ShmCommunicator(Communicator):
    """A group in memory that has no name and no file."""

    def __init__(self, options: ShmSettings, context: CommunicatorContext, /) -> None:
        self.rank, self.size = context.rank, context.size
        if context.device.partition(":")[0] != "cpu":
            raise UnsupportedModel(f"shm serves tensors on the CPU, and not on {context.device}")
        if not context.group.is_on_one_machine:
            raise UnsupportedModel(
                f"shm serves ranks of one machine; these meet at {context.group.host}, which other "
                "machines can reach"
            )
        if self.size > _MOST_RANKS:
            raise UnsupportedModel(f"shm serves {_MOST_RANKS} ranks at most, and not {self.size}")
        try:
            path = library(_BUILD, find_compiler())
        except CannotCompile as error:
            raise UnsupportedModel(str(error)) from error
        self._timeout = context.group.timeout
        self._library = _load(str(path))
        self._lost = "it was closed"
        self._meeting: Meeting | None = None
        self._group = None
        buffer, memory = options.buffer_size, -1
        if self.rank == 0 and (memory := self._library.create(self.size, buffer)) < 0:
            raise self._no_memory(buffer)
        terms = f"{self.size} ranks, a buffer_size of {buffer} and the library {path.name}"
        met = self._meeting = meet(context, memory, terms)
        self._group = self._library.join(
            met.memory, self.rank, self.size, buffer, _SLICED_FROM, met.has_cores
        )
        if not self._group:
            refused = self._no_memory(buffer)
            self.close()
            raise refused

    def _no_memory(self, buffer: int) -> SettingsError:
        return SettingsError(
            f"communicator.buffer_size: {2 * buffer * self.size} bytes of shared memory are needed "
            f"(two buffers of {buffer} for each of {self.size} ranks), which the system refuses: "
            f"{os.strerror(ctypes.get_errno())}; {psutil.virtual_memory().available >> 20} MiB of "
            "memory are free; it lies in no folder: look at the limits of the process (ulimit -f) "
            "and of its control group, or lower communicator.buffer_size"
        )

    # ------------------------------------------------------------------ operations

    def all_reduce(self, tensor: Tensor, /) -> None:
        check_tensor(ALL_REDUCE, tensor)
        self._run(ALL_REDUCE, tensor, tensor)

    def all_gather(self, tensor: Tensor, /) -> Tensor:
        gathered = tensor.new_empty((self.size, *tensor.shape))
        self._run(ALL_GATHER, tensor.contiguous(), gathered)
        return gathered

    def broadcast(self, tensor: Tensor, /, source: int = 0) -> None:
        check_tensor(BROADCAST, tensor, source, self.size)
        self._run(BROADCAST, tensor, tensor, source)

    def close(self) -> None:
        meeting, self._meeting = self._meeting, None
        if meeting is not None:
            meeting.close()
            group, self._group = self._group, None
            if group:
                self._library.leave(group)

    def __del__(self) -> None:
        if getattr(self, "_meeting", None) is not None:
            self.close()

    # ------------------------------------------------------------------ waiting

    def _run(self, kind: int, tensor: Tensor, out: Tensor, source: int = 0) -> None:
        """Start an operation; it is mostly done when the call returns."""
        if not tensor.is_cpu:
            raise ValueError(f"the tensor is on {tensor.device}, and shm serves those on the CPU")
        if self._group is None:
            raise ExecutorLost(f"the group of {self.size} ranks is of no use: {self._lost}")
        try:
            status = self._library.run(
                self._group,
                kind,
                CODES[tensor.dtype],
                source,
                tensor.data_ptr(),
                out.data_ptr(),
                tensor.nbytes,
            )
            if status:
                self._wait(status, KINDS[kind])
        except BaseException as error:
            if not isinstance(error, ExecutorLost):  # Ctrl-C: this rank may have come halfway
                self._give_up(_Verdict.INTERRUPTED, 1 << self.rank)
            self._lost = str(error) or type(error).__name__
            self.close()
            raise

    def _wait(self, status: int, doing: str) -> None:
        assert self._meeting is not None
        deadline = monotonic() + self._timeout
        while status == _Status.WAITING:
            # what is asked before the wait goes on is true although a rank published since
            is_late, ended = monotonic() >= deadline, self._meeting.ended()
            status = self._library.go_on(self._group)
            if status != _Status.WAITING:
                continue
            missing = self._library.missing(self._group)
            if missing & ended:
                raise self._give_up(_Verdict.ENDED, missing & ended, doing)
            if missing and is_late:
                raise self._give_up(_Verdict.LATE, missing, doing)
        if status == _Status.LOST:
            raise self._give_up(_Verdict.INTERRUPTED, 1 << self.rank, doing)
        if status == _Status.DIFFERENT:
            raise self._differ()

    def _give_up(self, verdict: _Verdict, missing: int, doing: str = "") -> ExecutorLost:
        """Give the group up; the error says what the first rank found that did."""
        said = self._library.give_up(self._group, verdict << _MOST_RANKS | missing)
        verdict, missing = _Verdict(said >> _MOST_RANKS), said & (1 << _MOST_RANKS) - 1
        named = [rank for rank in range(self.size) if missing >> rank & 1]
        return ExecutorLost(
            f"{rank_names(named)} of {self.size} {_SAID[verdict].format(self._timeout)}; found in "
            f"{doing}, on rank {self.rank}"
        )

    def _differ(self) -> ExecutorLost:
        """Give the group up, because ranks were asked for different operations."""
        calls = {rank: self._call_of(rank) for rank in range(self.size)}
        own = calls[self.rank]
        rank = next(rank for rank, call in calls.items() if call != own)
        self._library.give_up(self._group, _Verdict.DIFFERENT << _MOST_RANKS | 1 << rank)
        return ExecutorLost(
            f"rank {self.rank} was asked for {own}, and rank {rank} for {calls[rank]}"
        )

    def _call_of(self, rank: int) -> str:
        fields = (c_int64 * 5)()
        self._library.call_of(self._group, rank, fields)
        return call_text([*fields])
