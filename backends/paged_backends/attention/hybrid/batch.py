"""A batch in two parts: sequences with one new token, and the others.

Shapes: T tokens of S sequences, W blocks in a row of the block tables; a part has R tokens of N
sequences.
"""

# ruff: noqa: N803, N806, N815 - the shape of an array is the upper-case end of its name
from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from paged_backends.attention.transfer import to_device
from paged_core.interfaces.attention import AttentionBatch


@dataclass(frozen=True, slots=True)
class Part:
    """Some sequences of a batch."""

    rows_R: Tensor
    """int64: their tokens in the whole batch."""
    batch: AttentionBatch


def decodes(batch: AttentionBatch) -> NDArray[np.bool_]:
    """Return which sequences have one new token, [S]."""
    is_decode_S: NDArray[np.bool_] = np.diff(batch.query_start_host) == 1
    return is_decode_S


def part_of(batch: AttentionBatch, sequences_N: NDArray[np.int64]) -> Part:
    """Return the part that has these sequences, in this order; nothing waits for the device."""
    starts_S = batch.query_start_host
    counts_N = np.diff(starts_S)[sequences_N]
    query_start = np.cumsum([0, *counts_N], dtype=np.int32)
    first_N = starts_S[sequences_N] - query_start[:-1]
    rows_R = np.arange(query_start[-1]) + np.repeat(first_N, counts_N)
    lengths_N = batch.seq_lens_host[sequences_N]
    device = batch.slot_mapping.device
    on_device_N = to_device(sequences_N, device)
    on_device_R = to_device(rows_R.astype(np.int64), device)
    return Part(
        on_device_R,
        AttentionBatch(
            query_start=to_device(query_start, device),
            seq_lens=batch.seq_lens.index_select(0, on_device_N),
            block_tables=batch.block_tables.index_select(0, on_device_N),
            slot_mapping=batch.slot_mapping.index_select(0, on_device_R),
            query_start_host=query_start,
            seq_lens_host=lengths_N,
            block_tables_host=batch.block_tables_host[sequences_N],
            max_query_len=int(counts_N.max()),
            max_seq_len=int(lengths_N.max()),
        ),
    )


def reads_what_is_written(readers: AttentionBatch, writers: AttentionBatch, size: int) -> bool:
    """Return whether a sequence of ``readers`` has a block that one of ``writers`` writes to.

    Args:
        size: tokens of a block.
    """
    first_N = (writers.seq_lens_host - np.diff(writers.query_start_host)) // size
    read = _blocks(readers, np.zeros_like(readers.seq_lens_host), size)
    return bool(np.isin(read, _blocks(writers, first_N, size)).any())


def _blocks(batch: AttentionBatch, first_N: NDArray[np.int32], size: int) -> NDArray[np.int32]:
    """Return the blocks of each sequence, from its block ``first_N`` on."""
    index_W = np.arange(batch.block_tables_host.shape[1])
    counts_N = -(-batch.seq_lens_host // size)
    is_held_NW = (index_W >= first_N[:, None]) & (index_W < counts_N[:, None])
    blocks: NDArray[np.int32] = batch.block_tables_host[is_held_NW]
    return blocks
