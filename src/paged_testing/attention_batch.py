"""Batches for attention, made from block tables and numbers of tokens.

Tensors are torch's, which is imported when the first batch is made: the core does not import it.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paged_core.interfaces.attention import AttentionBatch


def attention_batch(
    tables: NDArray[np.integer[Any]],
    chunks: Sequence[tuple[int, int]],
    block_size: int,
    device: str = "cpu",
) -> AttentionBatch:
    """Return the batch of these sequences.

    Args:
        tables: [S, W], the block table of each sequence.
        chunks: how many tokens of each sequence are cached, and how many are new.
        device: of the tensors.
    """
    torch: Any = import_module("torch")
    new = [count for _, count in chunks]
    starts = np.cumsum([0, *new], dtype=np.int32)
    lengths = np.array([sum(both) for both in chunks], np.int32)
    owners = np.repeat(np.arange(len(chunks)), new)
    positions = np.arange(len(owners)) - (starts[1:] - lengths)[owners]
    slots = tables[owners, positions // block_size] * block_size + positions % block_size
    blocks = np.ascontiguousarray(tables, np.int32)

    def tensor(array: NDArray[Any]) -> Any:
        return torch.from_numpy(array).to(device)

    return AttentionBatch(
        query_start=tensor(starts),
        seq_lens=tensor(lengths),
        block_tables=tensor(blocks),
        slot_mapping=tensor(slots.astype(np.int64)),
        query_start_host=starts,
        seq_lens_host=lengths,
        block_tables_host=blocks,
        max_query_len=max(new),
        max_seq_len=int(lengths.max()),
    )
