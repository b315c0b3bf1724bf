"""Signs of life of a step loop, in memory that it shares with the process that watches it.

The memory has no name, so nothing is left of it when both have ended, however they did.
"""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
import time
from dataclasses import dataclass

_FORMAT = struct.Struct("<QddQ")
"""Beats so far; when the last one was; seconds that it may take until the next; whether a step
runs."""
_FIRST_STEP = 300.0
"""Seconds that the first step may take: kernels are compiled in it."""
_LEAST = 1.0
_FACTOR = 10.0
"""A step may take this many times as long as others did: batches grow, machines are shared."""
_FIRST_BEATS = 200
"""Beats up to which the longest step counts: some of the first ones compile kernels."""
_MEMORY_SECONDS = 3600.0
"""Seconds after which what a step took is forgotten, at the earliest; at twice as many it is."""


@dataclass(frozen=True, slots=True)
class Pulse:
    """The last sign of life of a process."""

    count: int
    at: float
    """On the monotonic clock of the machine."""
    estimate: float
    """Seconds until the next beat, as the process itself expects at most; 0 between steps."""
    in_step: bool

    @property
    def overdue(self) -> float:
        """Seconds since the next beat should have come; negative: there is time left."""
        return time.monotonic() - self.at - self.estimate


class Beat:
    """Memory that two processes see; the one that starts the other makes it.

    Args:
        descriptor: of a beat that another process has made.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        if descriptor is None:
            self.descriptor = _nameless_file()
            os.ftruncate(self.descriptor, mmap.PAGESIZE)
            self._memory = mmap.mmap(self.descriptor, mmap.PAGESIZE)
            self.write(Pulse(0, time.monotonic(), 0.0, in_step=False))
        else:
            self.descriptor = descriptor
            self._memory = mmap.mmap(descriptor, mmap.PAGESIZE)
            self.detach()

    def write(self, pulse: Pulse) -> None:
        """Show this from now on."""
        _FORMAT.pack_into(self._memory, 0, pulse.count, pulse.at, pulse.estimate, pulse.in_step)

    def read(self) -> Pulse:
        """Return what is shown."""
        count, at, estimate, in_step = _FORMAT.unpack_from(self._memory, 0)
        return Pulse(count, at, estimate, bool(in_step))

    def told(self) -> bytes:
        """Return what is shown, for a machine that has another clock."""
        pulse = self.read()
        age = time.monotonic() - pulse.at
        return _FORMAT.pack(pulse.count, age, pulse.estimate, pulse.in_step)

    def hear(self, told: bytes) -> None:
        """Show what :meth:`told` returned on another machine."""
        count, age, estimate, in_step = _FORMAT.unpack(told)
        self.write(Pulse(count, time.monotonic() - age, estimate, bool(in_step)))

    def detach(self) -> None:
        """Close the descriptor: no other process is to be given it."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def close(self) -> None:
        """Give the memory back."""
        self.detach()
        self._memory.close()


def _nameless_file() -> int:
    """Return the descriptor of memory, where there is such a file; on a disk that is full, to write
    to its page would end the process."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("paged_core beat")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class Beater:
    """Writes the beats of a step loop: see ``between_steps`` of ``EngineDriver``.

    What a step may take follows from the second longest one of the last hour or two, once it has
    run for a while: a machine that paused once does not make every hang ten times longer.
    """

    def __init__(self, beat: Beat) -> None:
        self._beat = beat
        self._count = 0
        self._began: float | None = None
        self._longest: list[float] = []
        """Seconds of the two longest steps of this hour, the longest first."""
        self._before: list[float] = []
        """The same of the hour before."""
        self._since = time.monotonic()
        self(False)

    def __call__(self, begins: bool, /) -> None:
        now = time.monotonic()
        self._count += 1
        estimate = 0.0
        if begins:
            self._began, estimate = now, self._estimate()
        elif self._began is not None:
            self._learn(now, now - self._began)
            self._began = None
        self._beat.write(Pulse(self._count, now, estimate, begins))

    def _estimate(self) -> float:
        longest = sorted(self._longest + self._before)
        if not longest:
            return _FIRST_STEP
        counted = 1 if self._count <= _FIRST_BEATS else 2
        return max(_LEAST, _FACTOR * longest[-counted:][0])

    def _learn(self, now: float, seconds: float) -> None:
        if now - self._since > _MEMORY_SECONDS:
            self._longest, self._before, self._since = [], self._longest, now
        self._longest = sorted((*self._longest, seconds), reverse=True)[:2]
