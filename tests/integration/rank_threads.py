"""Ranks of one group as threads of this process, one of which runs at a time."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Lock
from typing import Any, TypeVar

import torch
from torch import Tensor

from paged_core.interfaces.communicator import Communicator

Found = TypeVar("Found")
_SECONDS = 60.0
"""A rank that waits so long for another waits in vain."""


class ThreadGroup:
    """State that the ranks of a group share."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.barrier = Barrier(size, timeout=_SECONDS)
        self.turn = Lock()
        """Held by the rank that runs, not by those that wait: Triton's interpreter takes one."""
        self.given: list[Any] = [None] * size
        self.operations: list[tuple[str, tuple[int, ...], torch.dtype]] = []
        """All of them, as rank 0 called them."""

    def run(self, rank: Callable[[ThreadCommunicator], Found]) -> list[Found]:
        """Call ``rank`` for every rank at the same time, and return what each returns."""

        def guarded(communicator: ThreadCommunicator) -> Found:
            try:
                with self.turn:
                    return rank(communicator)
            except BaseException:
                self.barrier.abort()  # the others need not wait
                raise

        with ThreadPoolExecutor(self.size) as pool:
            ranks = [ThreadCommunicator(self, number) for number in range(self.size)]
            futures = [pool.submit(guarded, each) for each in ranks]
        errors = [error for future in futures if (error := future.exception()) is not None]
        own = [error for error in errors if type(error).__name__ != "BrokenBarrierError"]
        for error in own or errors:
            raise error
        return [future.result() for future in futures]


class ThreadCommunicator(Communicator):
    """One rank's end; it checks that all ranks call the same operation with the same shape."""

    def __init__(self, group: ThreadGroup, rank: int) -> None:
        self.rank, self.size, self._group = rank, group.size, group

    def all_reduce(self, tensor: Tensor, /) -> None:
        assert tensor.is_contiguous()
        parts = self._exchange("all_reduce", tensor)
        total = parts[0].float()
        for part in parts[1:]:
            total = total + part.float()
        tensor.copy_(total)

    def all_gather(self, tensor: Tensor, /) -> Tensor:
        return torch.stack(self._exchange("all_gather", tensor))

    def broadcast(self, tensor: Tensor, /, source: int = 0) -> None:
        tensor.copy_(self._exchange("broadcast", tensor)[source])

    def close(self) -> None:
        pass

    def _exchange(self, name: str, tensor: Tensor) -> list[Tensor]:
        group = self._group
        group.given[self.rank] = name, tensor.clone()
        group.turn.release()
        try:
            group.barrier.wait()
            given = list(group.given)
            group.barrier.wait()
        finally:
            group.turn.acquire()
        kinds = {(kind, tuple(part.shape), part.dtype) for kind, part in given}
        assert len(kinds) == 1, f"ranks call different operations: {kinds}"
        if self.rank == 0:
            group.operations.extend(kinds)
        return [part for _, part in given]
