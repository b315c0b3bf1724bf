"""One safetensors file, mapped into memory: nothing is read before it is used."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from paged_backends.checkpoint.safetensors_header import read_header
from paged_core.errors import CheckpointError

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}
_INTEGERS = {
    "I8": torch.int8,
    "U8": torch.uint8,
    "I32": torch.int32,
    "I64": torch.int64,
}


class SafetensorsFile:
    """Tensors by name, as views of the mapped file.

    Raises:
        CheckpointError: the file is corrupt.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._tensors = read_header(path)
        with path.open("rb") as file:
            # private and writable, because torch warns about read-only buffers
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of one tensor."""
        return self._tensors[name].shape

    def dtype(self, name: str) -> torch.dtype:
        """Return the dtype of one tensor.

        Raises:
            CheckpointError: its numbers are no plain floating-point numbers.
        """
        stored = self._tensors[name]
        dtype = _DTYPES.get(stored.dtype)
        if dtype is None:
            raise CheckpointError(
                f"{name} in {self.path} is stored as {stored.dtype}, and weights are stored as "
                f"one of {', '.join(_DTYPES)}; a quantised model needs a quantization_config"
            )
        return dtype

    def tensor(self, name: str) -> Tensor:
        """Return one tensor; it is only to be read. Raises what :meth:`dtype` raises."""
        return self._view(name, self.dtype(name))

    def stored(self, name: str) -> Tensor:
        """Return one tensor, which may be of integers; it is only to be read.

        Raises:
            CheckpointError: it is of a type that no weights are stored in.
        """
        stored = self._tensors[name].dtype
        dtype = _DTYPES.get(stored) or _INTEGERS.get(stored)
        if dtype is None:
            raise CheckpointError(
                f"{name} in {self.path} is stored as {stored}, and quantised weights are stored as "
                f"one of {', '.join(_INTEGERS)}, with scales in one of {', '.join(_DTYPES)}; take "
                "another quantisation of the model"
            )
        return self._view(name, dtype)

    def _view(self, name: str, dtype: torch.dtype) -> Tensor:
        stored = self._tensors[name]
        count = prod(stored.shape)
        if not count:
            return torch.empty(stored.shape, dtype=dtype)
        flat = torch.frombuffer(self._map, dtype=dtype, count=count, offset=stored.begin)
        return flat.view(stored.shape)

    def release(self) -> None:
        """Release the pages that were read; they are read from the file again if they are used."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)
