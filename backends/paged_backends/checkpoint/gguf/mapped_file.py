"""One GGUF file, mapped into memory: nothing is read before it is used."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod
from typing import Any

import torch
from torch import Tensor

from paged_backends.checkpoint.gguf.architecture import DIVISORS, architecture_of
from paged_backends.checkpoint.gguf.header import GgufHeader
from paged_backends.checkpoint.gguf.quantized_tensor import QuantizedTensor

_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


class MappedGguf:
    """Tensors by name, with the methods of a safetensors file.

    They have GGUF's names, and the form that transformers gives them: see :mod:`.architecture` for
    what differs.
    """

    def __init__(self, header: GgufHeader, config: Mapping[str, Any], dtype: torch.dtype) -> None:
        """Map a file.

        Args:
            config: what it says as ``config.json``.
            dtype: what quantised tensors become.
        """
        self._tensors = {name: each for name, each in header.tensors.items() if name != DIVISORS}
        self._config = config
        self._dtype = dtype
        self._architecture = architecture_of(header)
        with header.path.open("rb") as file:
            # private and writable, because torch warns about read-only buffers
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    @property
    def is_quantized(self) -> bool:
        """Whether any matrix is quantised."""
        return any(each.is_quantized_matrix for each in self._tensors.values())

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of one tensor."""
        return self._tensors[name].shape

    def dtype(self, name: str) -> torch.dtype:
        """Return the dtype of one tensor, as :meth:`tensor` returns it."""
        return _DTYPES.get(self._tensors[name].block_type.name, self._dtype)

    def tensor(self, name: str) -> Tensor:
        """Return one tensor; it is only to be read."""
        stored, shape = self._stored(name), self.shape(name)
        if stored.block_type.is_quantized:
            tensor = stored.dequantize(self._dtype)
        else:
            tensor = stored.bytes_RB.view(self.dtype(name)).view(shape)
        if self._architecture.norm_offset and _kind(name).endswith("norm"):
            return tensor - self._architecture.norm_offset
        return self._in_order(name, tensor)

    def blocks(self, name: str) -> QuantizedTensor | None:
        """Return a matrix as it is quantised, or ``None`` if it is not one or is not quantised."""
        if not self._tensors[name].is_quantized_matrix:
            return None
        stored = self._stored(name)
        return replace(stored, bytes_RB=self._in_order(name, stored.bytes_RB))

    def _in_order(self, name: str, rows: Tensor) -> Tensor:
        """Return the rows of a tensor in the order that transformers has."""
        kind = _kind(name)
        if not self._architecture.interleaved or kind not in ("attn_q", "attn_k"):
            return rows
        field = "num_attention_heads" if kind == "attn_q" else "num_key_value_heads"
        return _in_halves(rows, self._config[field])

    def _stored(self, name: str) -> QuantizedTensor:
        """Return a tensor as the file holds it."""
        stored = self._tensors[name]
        flat = torch.frombuffer(
            self._map, dtype=torch.uint8, count=stored.num_bytes, offset=stored.begin
        )
        rows = flat.view(prod(stored.shape[:-1]), -1)
        return QuantizedTensor(stored.block_type, stored.shape, rows)

    def release(self) -> None:
        """Release the pages that were read; they are read from the file again if they are used."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)


def _kind(name: str) -> str:
    """Return the last part of a module's name."""
    return name.rpartition(".")[0].rpartition(".")[2]


def _in_halves(rows: Tensor, num_heads: int) -> Tensor:
    """Return rows in another order: in each head, first those at even places, then the others."""
    if len(rows) % (2 * num_heads):
        return rows  # of another shape than the configuration says, and refused for that
    return rows.view(num_heads, -1, 2, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)
