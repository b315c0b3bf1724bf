"""Two properties of a GPU for Triton's interpreter: memory ends, programs run in any order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from torch import Tensor


class Accesses:
    """In the place of the interpreter's memory: only what the tensors of a launch hold is there."""

    def __init__(self, memory: Any) -> None:
        self._memory = memory
        self._ends = np.zeros((0, 2), np.uint64)
        """[tensors, 2]: first byte, and the byte after the last."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._memory, name)

    def allow(self, tensors: Iterator[Tensor]) -> None:
        """Let the next programs use the numbers of ``tensors``, and no other memory."""
        self._ends = np.array([*map(_ends, tensors)], np.uint64).reshape(-1, 2)

    def load(self, places: Any, mask: Any, other: Any, dtype: Any) -> Any:
        """Load what is inside."""
        self._check("read", places, mask, np.dtype(dtype).itemsize)
        return self._memory.load(places, mask, other, dtype)

    def store(self, places: Any, values: Any, mask: Any) -> Any:
        """Store what is inside."""
        self._check("written", places, mask, values.dtype.itemsize)
        return self._memory.store(places, values, mask)

    def _check(self, verb: str, places: NDArray[Any], mask: NDArray[Any], size: int) -> None:
        used = np.broadcast_to(places, mask.shape)[mask].astype(np.uint64)[:, None]
        first, end = self._ends.T
        outside = ~((used >= first) & (used + np.uint64(size) <= end)).any(1)
        assert not outside.any(), (
            f"{size} B at {int(used[outside][0, 0]):#x} are {verb}, and no tensor of the launch is "
            "there"
        )


def _ends(tensor: Tensor) -> tuple[int, int]:
    """A view reaches from its first number to its last."""
    if not tensor.numel():
        return tensor.data_ptr(), tensor.data_ptr()
    last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()


@contextmanager
def watched(*, backwards: bool = False) -> Iterator[None]:
    """Let interpreted kernels fail that use other memory than the tensors that they are given.

    Args:
        backwards: begin with the last program of each grid.
    """
    from triton.runtime import interpreter

    accesses = Accesses(interpreter._interpreter)
    executor, builder = interpreter.GridExecutor, interpreter.InterpreterBuilder
    init_args, set_index = executor._init_args_hst, builder.set_grid_idx

    def init(self: Any, args: Any, kwargs: Any) -> Any:
        made = init_args(self, args, kwargs)
        accesses.allow(one for one in (*made[0], *made[1].values()) if isinstance(one, Tensor))
        return made

    def set_from_the_end(self: Any, *index: int) -> None:
        set_index(self, *(size - 1 - at for size, at in zip(self.grid_dim, index, strict=True)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter, "_interpreter", accesses)
        patch.setattr(executor, "_init_args_hst", init)
        if backwards:
            patch.setattr(builder, "set_grid_idx", set_from_the_end)
        yield
