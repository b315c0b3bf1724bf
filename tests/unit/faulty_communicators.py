"""Communicators that are wrong on purpose: the conformance class must catch each."""

from __future__ import annotations

from dataclasses import replace
from socket import socket
from time import monotonic

import torch
from torch import Tensor

from paged_backends.communication.settings import ShmSettings
from paged_backends.communication.shared_memory import ShmCommunicator
from paged_core.engine.contexts import CommunicatorContext
from paged_core.errors import ExecutorLost
from unit.faulty_settings import FaultySettings


class _Shm(ShmCommunicator):
    """A communicator that the others are, but for their fault."""

    def __init__(self, options: FaultySettings, context: CommunicatorContext, /) -> None:
        super().__init__(ShmSettings(), context)


class IdleCommunicator(_Shm):
    """Counts the deadline of operations from when the group was made."""

    def __init__(self, options: FaultySettings, context: CommunicatorContext, /) -> None:
        super().__init__(options, context)
        self._until = monotonic() + context.group.timeout

    def all_reduce(self, tensor: Tensor, /) -> None:
        if monotonic() > self._until:
            raise ExecutorLost("ranks are lost")
        super().all_reduce(tensor)


class TurnsCommunicator(_Shm):
    """Gathers into two tensors in turns."""

    def all_gather(self, tensor: Tensor, /) -> Tensor:
        found, kept = super().all_gather(tensor), self.__dict__.setdefault("kept", [])
        kept[:] = [each for each in kept if each.shape == found.shape and each.dtype == found.dtype]
        if len(kept) < 2:
            kept.append(found)
            return found
        kept.reverse()
        buffer: Tensor = kept[0]
        return buffer.copy_(found)


class BackwardsCommunicator(_Shm):
    """Adds from the last rank to the first."""

    def all_reduce(self, tensor: Tensor, /) -> None:
        parts = super().all_gather(tensor).float()
        total = parts[-1]
        for rank in reversed(range(self.size - 1)):
            total = total + parts[rank]
        tensor.copy_(total)


class OwnFirstCommunicator(_Shm):
    """Adds its own first: other ranks have other bits."""

    def all_reduce(self, tensor: Tensor, /) -> None:
        parts = super().all_gather(tensor).float()
        total = parts[self.rank]
        for rank in range(self.size):
            if rank != self.rank:
                total = total + parts[rank]
        tensor.copy_(total)


class RoundingCommunicator(_Shm):
    """Rounds at each addition."""

    def all_reduce(self, tensor: Tensor, /) -> None:
        parts = super().all_gather(tensor)
        total = parts[0]
        for rank in range(1, self.size):
            total = total + parts[rank]
        tensor.copy_(total)


class WideCommunicator(_Shm):
    """Adds in float64."""

    def all_reduce(self, tensor: Tensor, /) -> None:
        super().all_reduce(tensor.clone())
        tensor.copy_(super().all_gather(tensor).double().sum(0))


class RotatedCommunicator(_Shm):
    """Gathers beginning with its own."""

    def all_gather(self, tensor: Tensor, /) -> Tensor:
        return super().all_gather(tensor).roll(-self.rank, 0)


class DeafCommunicator(_Shm):
    """Always broadcasts from the first rank."""

    def broadcast(self, tensor: Tensor, /, source: int = 0) -> None:
        super().broadcast(tensor, min(source, 0))


class CutCommunicator(_Shm):
    """Moves the first megabyte only."""

    def broadcast(self, tensor: Tensor, /, source: int = 0) -> None:
        flat = tensor.view(-1).view(torch.uint8)
        if self.rank == source or tensor.nbytes <= 1 << 20:
            super().broadcast(tensor, source)
        else:
            whole = flat.clone()
            super().broadcast(whole.view(tensor.dtype).view(tensor.shape), source)
            flat[: 1 << 20] = whole[: 1 << 20]


class StridedCommunicator(_Shm):
    """Gathers what is not contiguous in the order of memory."""

    def all_gather(self, tensor: Tensor, /) -> Tensor:
        if not tensor.is_contiguous():
            tensor = tensor.transpose(0, 1).reshape(tensor.shape)
        return super().all_gather(tensor)


class CredulousCommunicator(_Shm):
    """Compares no dtypes."""

    def broadcast(self, tensor: Tensor, /, source: int = 0) -> None:
        if not tensor.is_contiguous() or not 0 <= source < self.size:
            raise ValueError("no")
        super().broadcast(tensor.view(-1).view(torch.uint8) if tensor.numel() else tensor, source)


class NamelessCommunicator(_Shm):
    """Does not say which rank is lost."""

    def _run(self, *call: object) -> None:  # type: ignore[override]
        try:
            super()._run(*call)  # type: ignore[arg-type]
        except ExecutorLost:
            raise ExecutorLost("a process asked for something else, or was lost") from None


class OtherErrorCommunicator(_Shm):
    """Raises what the engine does not know."""

    def _run(self, *call: object) -> None:  # type: ignore[override]
        try:
            super()._run(*call)  # type: ignore[arg-type]
        except ExecutorLost as error:
            raise RuntimeError(str(error)) from None


class PatientCommunicator(_Shm):
    """Has no deadline."""

    def __init__(self, options: FaultySettings, context: CommunicatorContext, /) -> None:
        super().__init__(options, context)
        self._timeout = 1e6


class RevivingCommunicator(_Shm):
    """Pretends that a lost group goes on."""

    def _run(self, *call: object) -> None:  # type: ignore[override]
        if self._group is not None:
            super()._run(*call)  # type: ignore[arg-type]


class ClosedOnceCommunicator(_Shm):
    """Raises when it is closed again."""

    def close(self) -> None:
        if self._meeting is None:
            raise ValueError("it is closed")
        super().close()


class KeepingCommunicator(_Shm):
    """Keeps what was added."""

    def all_reduce(self, tensor: Tensor, /) -> None:
        super().all_reduce(tensor)
        self.__dict__.setdefault("seen", []).append(tensor)


class ShapesCommunicator(_Shm):
    """Keeps a buffer for every shape."""

    def all_gather(self, tensor: Tensor, /) -> Tensor:
        found = super().all_gather(tensor)
        key = tensor.shape, tensor.dtype
        buffer: Tensor = self.__dict__.setdefault("buffers", {}).setdefault(key, found)
        return buffer.copy_(found).clone()


class BackwardsSourceCommunicator(_Shm):
    """Counts negative sources from the last rank."""

    def broadcast(self, tensor: Tensor, /, source: int = 0) -> None:
        super().broadcast(tensor, source + self.size if source and source < 0 else source)


class OpenCommunicator(_Shm):
    """Notes that it was closed, and holds what it held."""

    def close(self) -> None:
        if self._meeting is not None:
            self._held = self._meeting, self._group
        self._meeting = self._group = None


class FlatCommunicator(_Shm):
    """Gathers without another dimension."""

    def all_gather(self, tensor: Tensor, /) -> Tensor:
        return super().all_gather(tensor).view(-1)


class FewCommunicator(_Shm):
    """Adds in the order of few ranks."""

    def all_reduce(self, tensor: Tensor, /) -> None:
        if self.size < 4:
            super().all_reduce(tensor)
        else:
            tensor.copy_(self.all_gather(tensor).flip(0).float().sum(0))


class StorageCommunicator(_Shm):
    """Counts from the beginning of the memory in which a tensor is."""

    def all_reduce(self, tensor: Tensor, /) -> None:
        super().all_reduce(tensor)
        if tensor.storage_offset():
            tensor.as_strided((1,), (1,), 0).zero_()


class AloneCommunicator(_Shm):
    """Adds anything where there is nothing to add."""

    def all_reduce(self, tensor: Tensor, /) -> None:
        if self.size > 1 or self._meeting is None:
            super().all_reduce(tensor)


class CountingCommunicator(_Shm):
    """Counts operations in 16 bits."""

    def broadcast(self, tensor: Tensor, /, source: int = 0) -> None:
        self.num_calls = self.__dict__.get("num_calls", 0) + 1
        self.num_calls.to_bytes(2)
        super().broadcast(tensor, source)


class PiecesCommunicator(_Shm):
    """Adds piece by piece, each of which has the deadline and a socket."""

    def all_reduce(self, tensor: Tensor, /) -> None:
        parts = tensor.view(-1).split(1 << 16) if tensor.numel() > 1 << 20 else [tensor]
        for part in parts:
            super().all_reduce(part)
            socket().close()


class PortCommunicator(_Shm):
    """Knows its group by the port."""

    def __init__(self, options: FaultySettings, context: CommunicatorContext, /) -> None:
        group = replace(context.group, name=f"at-{context.group.port}")
        super().__init__(options, replace(context, group=group))
