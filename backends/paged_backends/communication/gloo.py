"""Component ``gloo``: PyTorch's collective operations over TCP, on a CPU."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from torch import Tensor
from torch.distributed import (  # type: ignore[attr-defined]  # it has TCPStore, unannounced
    ProcessGroupGloo,
    TCPStore,
)

from paged_backends.communication.settings import GlooSettings
from paged_core.engine.contexts import CommunicatorContext
from paged_core.errors import ExecutorLost, error_text
from paged_core.interfaces.communicator import Communicator


class GlooCommunicator(Communicator):
    """A group of its own, beside any that the program has."""

    def __init__(self, options: GlooSettings, context: CommunicatorContext, /) -> None:
        self.rank, self.size = context.rank, context.size
        group, timeout = context.group, timedelta(seconds=context.group.timeout)
        try:
            self._store: TCPStore | None = TCPStore(
                group.host, group.port, self.size, is_master=self.rank == 0, timeout=timeout
            )
            self._group: Any = ProcessGroupGloo(self._store, self.rank, self.size, timeout)
        except RuntimeError as error:
            raise self._lost(error) from error

    def all_reduce(self, tensor: Tensor, /) -> None:
        parts = self.all_gather(tensor).float()
        total = parts[0]
        for rank in range(1, self.size):
            total += parts[rank]
        tensor.copy_(total)

    def all_gather(self, tensor: Tensor, /) -> Tensor:
        gathered = tensor.new_empty((self.size, *tensor.shape))
        try:
            self._group.allgather([list(gathered)], [tensor.contiguous()]).wait()
        except RuntimeError as error:
            raise self._lost(error) from error
        return gathered

    def broadcast(self, tensor: Tensor, /, source: int = 0) -> None:
        try:
            self._group.broadcast(tensor, source).wait()
        except RuntimeError as error:
            raise self._lost(error) from error

    def close(self) -> None:
        self._group = self._store = None

    def _lost(self, error: Exception) -> ExecutorLost:
        return ExecutorLost(f"rank {self.rank} of {self.size} lost another: {error_text(error)}")
