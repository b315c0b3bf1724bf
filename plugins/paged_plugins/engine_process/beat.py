"""Signs of life of an engine's process, in memory that it shares with the one that started it.

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
"""A step may take this many times the longest one so far: batches grow, machines are shared."""


@dataclass(frozen=True, slots=True)
class Pulse:
    """What was last seen of a process."""

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


class SharedBeat:
    """Sixty-four bytes that two processes see; the one that starts the other makes them."""

    def __init__(self, descriptor: int | None = None) -> None:
        if descriptor is None:
            with tempfile.TemporaryFile() as file:
                file.truncate(mmap.PAGESIZE)
                self.descriptor = os.dup(file.fileno())
        else:
            self.descriptor = descriptor
        self._memory = mmap.mmap(self.descriptor, mmap.PAGESIZE)

    def write(self, pulse: Pulse) -> None:
        """Show this from now on."""
        _FORMAT.pack_into(self._memory, 0, pulse.count, pulse.at, pulse.estimate, pulse.in_step)

    def read(self) -> Pulse:
        """Return what is shown."""
        count, at, estimate, in_step = _FORMAT.unpack_from(self._memory, 0)
        return Pulse(count, at, estimate, bool(in_step))

    def close(self) -> None:
        """Give the memory back."""
        self._memory.close()
        os.close(self.descriptor)


class Beater:
    """Writes the beats of a step loop: see ``between_steps`` of ``EngineDriver``."""

    def __init__(self, shared: SharedBeat) -> None:
        self._shared = shared
        self._count = 0
        self._began: float | None = None
        self._longest = 0.0
        self(False)

    def __call__(self, begins: bool, /) -> None:
        now = time.monotonic()
        self._count += 1
        estimate = 0.0
        if begins:
            self._began = now
            estimate = max(_LEAST, _FACTOR * self._longest) if self._longest else _FIRST_STEP
        elif self._began is not None:
            self._longest = max(self._longest, now - self._began)
            self._began = None
        self._shared.write(Pulse(self._count, now, estimate, begins))
