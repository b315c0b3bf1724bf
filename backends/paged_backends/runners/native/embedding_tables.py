"""Tables of embeddings: one row for each token of the vocabulary.

Shapes: T tokens, V vocabulary, E embedding size.
"""

# ruff: noqa: N803, N815 - the shape of an array is the upper-case end of its name
from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from paged_backends.checkpoint.gguf.tensors import QuantizedTensor


class Table(Protocol):
    """Looks up rows."""

    def __call__(self, tokens_T: Tensor) -> Tensor:
        """Return the rows [T, E] of tokens, in a dtype of the table's own."""


@dataclass(frozen=True, slots=True)
class DenseTable:
    """A table of plain numbers."""

    rows_VE: Tensor

    def __call__(self, tokens_T: Tensor) -> Tensor:
        return functional.embedding(tokens_T, self.rows_VE)

    def to(self, device: torch.device, dtype: torch.dtype) -> DenseTable:
        """Return the same table on another device, in another dtype."""
        return DenseTable(self.rows_VE.to(device, dtype))


@dataclass(frozen=True, slots=True)
class BlockTable:
    """A table in the blocks of a mapped GGUF file: rows are dequantised when they are looked up."""

    blocks: QuantizedTensor
    dtype: torch.dtype

    def __call__(self, tokens_T: Tensor) -> Tensor:
        return self.blocks.rows(tokens_T).dequantize(self.dtype)
