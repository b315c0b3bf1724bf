"""One safetensors file, mapped into memory: nothing is read before it is used.

The format: eight bytes of length, a header in JSON, then the data of all tensors.
"""

from __future__ import annotations

import json
import mmap
import struct
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paged_core.errors import CheckpointError

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "U8": torch.uint8,
    "I8": torch.int8,
    "BOOL": torch.bool,
}


class SafetensorsFile:
    """Tensors by name, as views of the mapped file.

    Raises:
        CheckpointError: the header cannot be read, or does not fit the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with path.open("rb") as file:
            # private and writable, because torch warns about read-only buffers
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        try:
            length = struct.unpack_from("<Q", self._map)[0]
            self._entries: dict[str, Any] = json.loads(self._map[8 : 8 + length])
        except (struct.error, ValueError) as error:
            raise self._corrupt() from error
        self._entries.pop("__metadata__", None)
        self._start = 8 + length

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def tensor(self, name: str) -> Tensor:
        """Return one tensor; it is only to be read.

        Raises:
            CheckpointError: its entry is corrupt, or its dtype is not supported.
        """
        entry = self._entries[name]
        try:
            kind, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
            size = end - begin
        except (LookupError, TypeError, ValueError) as error:
            raise self._corrupt() from error
        dtype = _DTYPES.get(kind)
        if dtype is None:
            raise CheckpointError(
                f"{name} in {self._path} is stored as {kind}, which the native runner does not "
                "read; set runner to transformers"
            )
        if begin < 0 or size != prod(shape) * dtype.itemsize or self._start + end > len(self._map):
            raise self._corrupt()
        if not size:
            return torch.empty(shape, dtype=dtype)
        flat = torch.frombuffer(
            self._map, dtype=dtype, count=prod(shape), offset=self._start + begin
        )
        return flat.view(shape)

    def release(self) -> None:
        """Release the pages that were read; they are read from the file again if they are used."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)

    def _corrupt(self) -> CheckpointError:
        return CheckpointError(f"{self._path} has a corrupt safetensors header; download it again")
