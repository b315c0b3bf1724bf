"""Component ``nccl``: NVIDIA's collective operations, between GPUs."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch.distributed import is_nccl_available

from paged_backends.communication.calls import ALL_REDUCE, BROADCAST, check_tensor, sum_in_order
from paged_backends.communication.settings import NcclSettings
from paged_core.engine.contexts import CommunicatorContext
from paged_core.errors import ExecutorLost, UnsupportedModel, error_text
from paged_core.interfaces.communicator import Communicator


def unavailable_reason() -> str | None:
    """Return why not, or ``None``."""
    if not torch.cuda.is_available():
        return f"torch {torch.__version__} finds no CUDA device"
    if not is_nccl_available():
        return f"torch {torch.__version__} was built without NCCL"
    return None


class NcclCommunicator(Communicator):
    """Operations are launched on the current stream, and can be captured in graphs.

    So none waits for the others on the host: where a rank is lost, the device waits, and NCCL's
    watchdog ends this process after the group's timeout.
    """

    can_be_captured = True

    def __init__(self, options: NcclSettings, context: CommunicatorContext, /) -> None:
        self.rank, self.size = context.rank, context.size
        if not context.device.startswith("cuda"):
            raise UnsupportedModel(f"nccl serves CUDA devices, and not {context.device}")
        self._own_sums = options.sums == "nccl"
        try:
            self._group: Any = make_group(context)
        except RuntimeError as error:
            raise ExecutorLost(
                f"rank {self.rank} of {self.size} cannot join the group on {context.device}: "
                f"{error_text(error)}; two ranks on one GPU need communicator 'gloo'"
            ) from error

    def all_reduce(self, tensor: Tensor, /) -> None:
        check_tensor(ALL_REDUCE, tensor)
        if self._own_sums:
            self._running().allreduce([tensor]).wait()
            return
        tensor.copy_(sum_in_order(self.all_gather(tensor)))

    def all_gather(self, tensor: Tensor, /) -> Tensor:
        gathered = tensor.new_empty((self.size, *tensor.shape))
        self._running()._allgather_base(gathered, tensor.contiguous()).wait()
        return gathered

    def broadcast(self, tensor: Tensor, /, source: int = 0) -> None:
        check_tensor(BROADCAST, tensor, source, self.size)
        self._running().broadcast(tensor, source).wait()

    def close(self) -> None:
        group, self._group = self._group, None
        if group is not None:
            group.abort()  # it waits for no other rank

    def _running(self) -> Any:
        if self._group is None:
            raise ExecutorLost(f"the group of {self.size} ranks is of no use: it was closed")
        return self._group


def make_group(context: CommunicatorContext) -> Any:
    """Return PyTorch's group of these ranks, each on its device; ``RuntimeError``: it fails."""
    from torch.distributed import ProcessGroupNCCL, TCPStore  # type: ignore[attr-defined]

    group, timeout = context.group, timedelta(seconds=context.group.timeout)
    torch.cuda.set_device(context.device)
    store = TCPStore(
        group.host, group.port, context.size, is_master=context.rank == 0, timeout=timeout
    )
    chosen = ProcessGroupNCCL.Options()
    chosen._timeout = timeout
    made = ProcessGroupNCCL(store, context.rank, context.size, chosen)
    made.eager_connect_single_device(torch.device(context.device))
    return made
