"""Attention of chunks of any length, many sequences in one launch: prefill, chunks, mixed batches.

A program computes one tile of one sequence for one key head. There are at most
``rows // ROWS + sequences`` tiles of all sequences together, so that the grid depends on nothing
that the device knows; a program finds its sequence by counting.
"""

# ruff: noqa: N803, N806 - constants are upper-case, and the shape of an array is the end of its name
from __future__ import annotations

import triton
import triton.language as tl

from paged_backends.kernels.triton.attention_softmax import attend_keys

_SEARCHED_AT_ONCE = tl.constexpr(256)


@triton.jit
def _find_sequence(query_start, tile, num_sequences, GROUP: tl.constexpr, ROWS: tl.constexpr):
    """Return the last sequence whose first tile is not after ``tile``."""
    found = tl.full([], -1, tl.int32)
    for first in range(0, num_sequences, _SEARCHED_AT_ONCE):
        sequence_N = first + tl.arange(0, _SEARCHED_AT_ONCE)
        is_there_N = sequence_N < num_sequences
        start_N = tl.load(query_start + sequence_N, is_there_N, 0)
        is_before_N = start_N * GROUP // ROWS + sequence_N <= tile
        found += tl.sum((is_before_N & is_there_N).to(tl.int32), 0)
    return found


@triton.jit(
    do_not_specialize=["table_width", "num_sequences", "least_tokens", "window"],
    do_not_specialize_on_alignment=["query_start", "seq_lens", "block_tables", "slopes"],
)
def attend_tiles(
    query, cache, out, query_start, seq_lens, block_tables, slopes,
    query_token, query_head, table_width, num_sequences, least_tokens,
    scale, soft_cap, window,
    GROUP: tl.constexpr, KV_HEADS: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    HEAD_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, HAS_WINDOW: tl.constexpr, HAS_CAP: tl.constexpr,
    HAS_SLOPES: tl.constexpr, FLOAT8: tl.constexpr, NATIVE: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """Attend with the queries [T, heads, HEAD_DIM], whose strides are given, into ``out``.

    Args:
        least_tokens: sequences that have fewer new tokens are left out.

    Grid: (rows of a head // ROWS + num_sequences, KV_HEADS).
    """
    # the last tiles of a sequence see the most keys: they begin first
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    kv_head = tl.program_id(1)
    sequence = _find_sequence(query_start, tile, num_sequences, GROUP, ROWS)
    start = tl.load(query_start + sequence)
    num_tokens = tl.load(query_start + sequence + 1) - start
    length = tl.load(seq_lens + sequence)
    first_row = (tile - (start * GROUP // ROWS + sequence)) * ROWS
    num_rows = num_tokens * GROUP
    if num_tokens >= least_tokens and first_row < num_rows and length > 0:
        row_R = first_row + tl.arange(0, ROWS)
        dims_D = tl.arange(0, DIM)
        token_R = (start + row_R // GROUP).to(tl.int64)
        head_R = (kv_head * GROUP + row_R % GROUP).to(tl.int64)
        mask_RD = (row_R < num_rows)[:, None] & (dims_D < HEAD_DIM)[None, :]
        place_R = token_R * query_token + head_R * query_head
        query_RD = tl.load(query + place_R[:, None] + dims_D[None, :], mask_RD, 0.0)
        slope_R = tl.full([ROWS], 0.0, tl.float32)
        if HAS_SLOPES:
            slope_R = tl.load(slopes + head_R, row_R < num_rows, 0.0)

        num_cached = length - num_tokens
        position_R = num_cached + row_R // GROUP
        first_position = num_cached + first_row // GROUP
        last_position = num_cached + (tl.minimum(first_row + ROWS, num_rows) - 1) // GROUP
        greatest_R = tl.full([ROWS], float("-inf"), tl.float32)
        total_R = tl.full([ROWS], 0.0, tl.float32)
        out_RD = tl.full([ROWS, DIM], 0.0, tl.float32)
        cache_head = cache + kv_head * HEAD_SIZE
        table = block_tables + sequence.to(tl.int64) * table_width
        if HAS_WINDOW:
            begin = tl.maximum(first_position + 1 - window, 0) // KEYS * KEYS
        else:
            # all queries of the tile see these keys
            begin = (first_position + 1) // KEYS * KEYS
            greatest_R, total_R, out_RD = attend_keys(
                query_RD, position_R, slope_R, greatest_R, total_R, out_RD,
                cache_head, table, tl.full([], 0, tl.int32), begin, scale, soft_cap, window,
                KV_HEADS, BLOCK_SIZE, HEAD_SIZE, HEAD_DIM, DIM, KEYS, HAS_WINDOW, HAS_CAP,
                HAS_SLOPES, FLOAT8, NATIVE, DOT, MASKED=False,
            )  # fmt: skip
        greatest_R, total_R, out_RD = attend_keys(
            query_RD, position_R, slope_R, greatest_R, total_R, out_RD,
            cache_head, table, begin, last_position + 1, scale, soft_cap, window,
            KV_HEADS, BLOCK_SIZE, HEAD_SIZE, HEAD_DIM, DIM, KEYS, HAS_WINDOW, HAS_CAP,
            HAS_SLOPES, FLOAT8, NATIVE, DOT, MASKED=True,
        )  # fmt: skip
        place_R = (token_R * (KV_HEADS * GROUP) + head_R) * HEAD_DIM
        result_RD = (out_RD / total_R[:, None]).to(out.dtype.element_ty)
        tl.store(out + place_R[:, None] + dims_D[None, :], result_RD, mask_RD)
