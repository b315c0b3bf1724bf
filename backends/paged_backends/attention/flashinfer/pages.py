"""A batch as FlashInfer takes it: runs of pages, on the host."""

# ruff: noqa: N806 - the shape of an array is the upper-case end of its name
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paged_core.interfaces.attention import AttentionBatch


@dataclass(frozen=True, slots=True)
class Pages:
    """The pages of S sequences, as host tensors of int32 that are pinned for a GPU: FlashInfer
    reads them on the host, and copies them without waiting."""

    query_start: Tensor
    """[S + 1]: running sums of the numbers of queries."""
    page_start: Tensor
    """[S + 1]: running sums of the numbers of pages."""
    pages: Tensor
    """Block ids of the first sequence, then of the second, and so on."""
    last_page_len: Tensor
    """[S]: tokens in the last page of each sequence, 1 at least."""

    @classmethod
    def of(cls, batch: AttentionBatch, block_size: int) -> Pages:
        """Return the pages of ``batch``."""
        lengths_S, tables_SW = batch.seq_lens_host, batch.block_tables_host
        counts_S = -(-lengths_S // block_size)
        is_used_SW = np.arange(tables_SW.shape[1]) < counts_S[:, None]
        device = batch.seq_lens.device
        return cls(
            query_start=_host_tensor(batch.query_start_host, device),
            page_start=_host_tensor(np.cumsum([0, *counts_S]), device),
            pages=_host_tensor(tables_SW[is_used_SW], device),
            last_page_len=_host_tensor(lengths_S - (counts_S - 1) * block_size, device),
        )


def _host_tensor(array: NDArray[Any], device: torch.device) -> Tensor:
    tensor = torch.from_numpy(array.astype(np.int32))
    return tensor.pin_memory() if device.type == "cuda" else tensor
