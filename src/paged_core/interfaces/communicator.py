"""Slot ``communicator``: how the ranks that compute each step together exchange tensors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class RankGroup:
    """The ranks that compute each step together, as data that each of them gets."""

    name: str
    """Name of the group: no other on these machines has it."""
    host: str
    """Where rank 0 listens while the group is made, on :attr:`port`."""
    port: int
    timeout: float
    """Seconds that an operation waits for the other ranks."""

    @property
    def is_on_one_machine(self) -> bool:
        """True if all ranks are: rank 0 listens where no other machine can reach it."""
        return self.host in ("localhost", "::1") or self.host.startswith("127.")


class Communicator(ABC):
    """One rank's end of a group.

    All ranks call the same operations in the same order, with tensors of the same shape and dtype,
    on one device. Each operation has a deadline, which is the group's.

    Every operation raises ``ExecutorLost``, naming the rank, if a rank has died or has not come by
    the deadline; and, saying what each was asked for, if that differs. The group is then of no
    further use on any rank, but to be closed.
    """

    rank: int
    size: int
    can_be_captured: bool = False
    """True if operations may be in CUDA graphs: they wait for nothing on the host."""

    @abstractmethod
    def all_reduce(self, tensor: Tensor, /) -> None:
        """Replace a contiguous tensor by its sum over the ranks.

        The same bits on every rank and in every run: values are added in float32, in the order of
        the ranks, and rounded to the tensor's dtype once.
        """

    @abstractmethod
    def all_gather(self, tensor: Tensor, /) -> Tensor:
        """Return the tensors [...] of all ranks, in the order of the ranks: [size, ...]."""

    @abstractmethod
    def broadcast(self, tensor: Tensor, /, source: int = 0) -> None:
        """Replace a contiguous tensor by that of the rank ``source``."""

    @abstractmethod
    def close(self) -> None:
        """Leave the group and give back what it holds; calling it again does nothing."""
