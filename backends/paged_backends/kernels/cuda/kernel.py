"""Kernels that can be launched, on a GPU or in an emulation of one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from paged_backends.kernels.cuda.structs import Argument

Grid = tuple[int, int, int]
"""Thread blocks in each dimension."""


class KernelError(RuntimeError):
    """A kernel could not be launched, or its emulation found an error in it."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """What a compiled kernel says of itself."""

    threads: int
    """Of a thread block."""
    shared_bytes: int
    """Dynamic shared memory of a thread block."""
    rows: int
    """Query rows that a thread block takes; 0: does not apply."""
    argument_bytes: int
    """Size of its structure."""

    def check(self, kernel: str, argument_bytes: int) -> None:
        """Check that the structure is the one that Python fills.

        Raises:
            KernelError: its size is another.
        """
        if self.argument_bytes != argument_bytes:
            raise KernelError(
                f"kernel {kernel} takes a structure of {self.argument_bytes} bytes, and this one "
                f"has {argument_bytes}: the compiled kernels are of another version; delete them "
                "from the folder `kernels` of the cache (`paged-core doctor` names it)"
            )


class Kernel(Protocol):
    """One kernel of a module."""

    @property
    def geometry(self) -> Geometry:
        """What it says of itself."""

    def launch(self, grid: Grid, argument: Argument, stream: int, /) -> None:
        """Run it in ``stream``, after what was put there before; does not wait.

        Raises:
            KernelError: it cannot be launched.
        """


class KernelModule(Protocol):
    """Kernels that were loaded together."""

    declares: bool
    """Whether it is to be told which memory kernels may use: see :meth:`declare`."""

    def kernel(self, name: str, argument_bytes: int, /) -> Kernel:
        """Return a kernel; it is kept.

        Args:
            argument_bytes: size of the structure that it will be given.

        Raises:
            KernelError: there is none of that name, or its structure has another size.
        """

    def stream(self) -> int:
        """Return the stream that PyTorch uses now."""

    def declare(self, buffers: dict[str, Tensor | None], /) -> None:
        """Say which tensors the next kernels may use, and no other memory."""
