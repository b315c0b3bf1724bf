"""Pages of a cache on a CPU, provided by the system before blocks are first written.

Linux provides memory when it is first written to, page by page, inside the step that writes; on a
virtual machine whose host has to find the memory first this can take as long as computing what is
written. Here a thread asks for the pages of the blocks that come next, a bounded number of bytes
ahead of those in use: memory still grows with use.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from threading import Thread

from torch import Tensor

from paged_core.log import get_logger
from paged_core.step import StepInput

_POPULATE_WRITE = 23
"""``MADV_POPULATE_WRITE``, since Linux 5.14: provides pages, and leaves what is in them."""
_PIECE = 1 << 21
"""Bytes of one call, which other threads that map or unmap memory may have to wait for."""
_RUNS = 4
"""A thread is started when this fraction of the bytes ahead has been used."""

log = get_logger()


@dataclass(frozen=True, slots=True)
class BlockMemory:
    """A contiguous tensor in the memory of the host whose dimension ``dim`` are the blocks."""

    tensor: Tensor
    dim: int

    @property
    def block_bytes(self) -> int:
        """Bytes of one block, in all its places."""
        return self.tensor[(slice(None),) * self.dim + (slice(0, 1),)].nbytes

    def ranges(self, begin: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the address and size of each range that holds the blocks ``begin`` to ``end``.

        There is one for each index of the dimensions before the blocks (layers, keys and values).
        """
        tensor, dim = self.tensor, self.dim
        pace = tensor.stride(dim) * tensor.itemsize
        for place in range(prod(tensor.shape[:dim])):
            first = tensor.data_ptr() + (place * tensor.shape[dim] + begin) * pace
            yield first, (end - begin) * pace


class PagePopulator:
    """Populates the blocks that follow those in use, each run of them in a thread that then ends.

    Allocators hand out blocks that were never used in the order of their ids, so these are the
    blocks above the highest id that any step named.

    Args:
        memories: of the cache; kept until :meth:`close`, and by a run until it ends.
        num_blocks: of the cache.
        ahead: bytes to be populated that no step has named yet.
    """

    def __init__(self, memories: Sequence[BlockMemory], num_blocks: int, ahead: int) -> None:
        self._memories = list(memories)
        self._num_blocks = num_blocks
        self._ahead = max(1, ahead // max(1, sum(memory.block_bytes for memory in memories)))
        self._least = max(1, self._ahead // _RUNS)
        self._num_used = 0
        """Blocks below it are in use, or were."""
        self._end = 0
        """Blocks below it are in use, populated, or in the run in flight."""
        self._madvise = _madvise()
        self._thread: Thread | None = None
        self._stopped = False
        self._start_run()

    def follow(self, step: StepInput) -> None:
        """Keep ahead of the blocks that a step, which has run, names; never waits."""
        if self._stopped or self._end == self._num_blocks:
            return
        highest = max(step.edit_blocks, default=-1)
        for new in step.added:
            highest = max(highest, max(new.blocks, default=-1))
        self._num_used = max(self._num_used, highest + 1)
        self._start_run()

    def wait(self) -> None:
        """Wait for the run in flight, if there is one."""
        if self._thread is not None:
            self._thread.join()

    def close(self) -> None:
        """End the run in flight, wait for its thread, and let go of the memory."""
        self._stopped = True
        self.wait()
        self._memories = []

    def _start_run(self) -> None:
        """Start a run, unless little is left to be populated or one is in flight."""
        end = min(self._num_used + self._ahead, self._num_blocks)
        if end - self._end < max(1, min(self._least, self._num_blocks - self._end)):
            return
        if self._thread is not None and self._thread.is_alive():
            return  # asked again at the next step
        begin, self._end = max(self._end, self._num_used), end
        self._thread = Thread(
            target=self._populate, args=(self._memories, begin, end), name="page_populator"
        )
        try:
            self._thread.start()
        except RuntimeError as error:  # there are too many threads, or the interpreter is ending
            self._thread = None
            self._give_up(str(error))

    def _populate(self, memories: Sequence[BlockMemory], begin: int, end: int) -> None:
        for memory in memories:
            for address, size in memory.ranges(begin, end):
                for piece in range(address, address + size, _PIECE):
                    if self._stopped:
                        return
                    size_left = address + size - piece
                    error = _populate_write(self._madvise, piece, min(_PIECE, size_left))
                    if error:
                        self._give_up(os.strerror(error))
                        return

    def _give_up(self, reason: str) -> None:
        self._stopped = True
        log.debug("cache_population_ended", reason=reason)


def unpopulated_reason() -> str | None:
    """Return why memory is not populated ahead on this machine; ``None``: it can be."""
    if sys.platform != "linux":
        return f"{sys.platform} has no call for it"
    nodes = len(list(Path("/sys/devices/system/node").glob("node[0-9]*")))
    if nodes > 1:
        return f"one thread would put all pages on one of {nodes} memory nodes"
    error = _populate_write(_madvise(), 0, 0)
    if error:
        return f"the kernel refuses MADV_POPULATE_WRITE: {os.strerror(error)}"
    return None


def _madvise() -> Callable[[int, int, int], int]:
    """Return the function of the C library; unlike :meth:`mmap.mmap.madvise`, a call of it does not
    hold the lock of Python's interpreter.
    """
    function = ctypes.CDLL(None, use_errno=True).madvise
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return function


def _populate_write(madvise: Callable[[int, int, int], int], address: int, size: int) -> int:
    """Populate the pages that hold a range; return 0, or the number of the system's error."""
    first = address - address % mmap.PAGESIZE
    return ctypes.get_errno() if madvise(first, address + size - first, _POPULATE_WRITE) else 0
