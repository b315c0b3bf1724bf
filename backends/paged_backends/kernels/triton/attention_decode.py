"""Attention of sequences that decode one token: keys are split among programs, whose results are
merged by a second launch (Dao et al., "Flash-Decoding").

A sequence is cut into at most ``num_splits`` parts of whole tiles of keys, none shorter than
``LEAST_TILES``. The programs of splits that a sequence does not have return at once, so that the
grid depends on nothing that the device knows.
"""

# ruff: noqa: N803, N806 - constants are upper-case, and the shape of an array is the end of its name
from __future__ import annotations

import triton
import triton.language as tl

from paged_backends.kernels.triton.attention_softmax import attend_keys


@triton.jit
def _tiles_of(
    length, window, num_splits,
    KEYS: tl.constexpr, LEAST_TILES: tl.constexpr, HAS_WINDOW: tl.constexpr,
):  # fmt: skip
    """Return the first tile of keys that the last token sees, how many there are, and how many of
    them are in a split."""
    first = tl.full([], 0, tl.int32)
    if HAS_WINDOW:
        first = tl.maximum(length - window, 0) // KEYS
    count = (length + KEYS - 1) // KEYS - first
    return first, count, tl.maximum((count + num_splits - 1) // num_splits, LEAST_TILES)


@triton.jit(
    do_not_specialize=["table_width", "num_splits", "window"],
    do_not_specialize_on_alignment=["query_start", "seq_lens", "block_tables", "slopes"],
)
def attend_splits(
    query, cache, out, parts, states, query_start, seq_lens, block_tables, slopes,
    query_token, query_head, table_width, num_splits, scale, soft_cap, window,
    GROUP: tl.constexpr, KV_HEADS: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    HEAD_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr, ROWS: tl.constexpr,
    KEYS: tl.constexpr, LEAST_TILES: tl.constexpr, HAS_WINDOW: tl.constexpr,
    HAS_CAP: tl.constexpr, HAS_SLOPES: tl.constexpr, FLOAT8: tl.constexpr, NATIVE: tl.constexpr,
    DOT: tl.constexpr, HAS_SPLITS: tl.constexpr,
):  # fmt: skip
    """Attend with the query of each sequence that has one new token, one split of its keys.

    Args:
        out: [T, heads, HEAD_DIM], written if there is one split.
        parts: float32 [S, heads, num_splits, HEAD_DIM], written otherwise.
        states: float32 [2, S, heads, num_splits]: the greatest score and the sum of weights.

    Grid: (S, KV_HEADS, num_splits).
    """
    sequence, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    start = tl.load(query_start + sequence)
    num_tokens = tl.load(query_start + sequence + 1) - start
    length = tl.load(seq_lens + sequence)
    first, count, tiles = _tiles_of(length, window, num_splits, KEYS, LEAST_TILES, HAS_WINDOW)
    if num_tokens == 1 and split * tiles < count:
        row_R = tl.arange(0, ROWS)
        dims_D = tl.arange(0, DIM)
        head_R = (kv_head * GROUP + row_R).to(tl.int64)
        mask_RD = (row_R < GROUP)[:, None] & (dims_D < HEAD_DIM)[None, :]
        place_R = start.to(tl.int64) * query_token + head_R * query_head
        query_RD = tl.load(query + place_R[:, None] + dims_D[None, :], mask_RD, 0.0)
        slope_R = tl.full([ROWS], 0.0, tl.float32)
        if HAS_SLOPES:
            slope_R = tl.load(slopes + head_R, row_R < GROUP, 0.0)
        begin = (first + split * tiles) * KEYS
        greatest_R, total_R, out_RD = attend_keys(
            query_RD, tl.full([ROWS], 0, tl.int32) + (length - 1), slope_R,
            tl.full([ROWS], float("-inf"), tl.float32), tl.full([ROWS], 0.0, tl.float32),
            tl.full([ROWS, DIM], 0.0, tl.float32),
            cache + kv_head * HEAD_SIZE, block_tables + sequence.to(tl.int64) * table_width,
            begin, tl.minimum(begin + tiles * KEYS, length), scale, soft_cap, window,
            KV_HEADS, BLOCK_SIZE, HEAD_SIZE, HEAD_DIM, DIM, KEYS, HAS_WINDOW, HAS_CAP,
            HAS_SLOPES, FLOAT8, NATIVE, DOT, MASKED=True,
        )  # fmt: skip
        HEADS: tl.constexpr = KV_HEADS * GROUP
        if HAS_SPLITS:
            index_R = (sequence.to(tl.int64) * HEADS + head_R) * num_splits + split
            num_states = tl.num_programs(0).to(tl.int64) * HEADS * num_splits
            tl.store(states + index_R, greatest_R, row_R < GROUP)
            tl.store(states + num_states + index_R, total_R, row_R < GROUP)
            tl.store(parts + (index_R * HEAD_DIM)[:, None] + dims_D[None, :], out_RD, mask_RD)
        else:
            place_R = (start.to(tl.int64) * HEADS + head_R) * HEAD_DIM
            result_RD = (out_RD / total_R[:, None]).to(out.dtype.element_ty)
            tl.store(out + place_R[:, None] + dims_D[None, :], result_RD, mask_RD)


@triton.jit(
    do_not_specialize=["num_splits", "window"],
    do_not_specialize_on_alignment=["query_start", "seq_lens"],
)
def merge_splits(
    out, parts, states, query_start, seq_lens, num_splits, window,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr, SPLITS: tl.constexpr,
    CHUNK: tl.constexpr, KEYS: tl.constexpr, LEAST_TILES: tl.constexpr, HAS_WINDOW: tl.constexpr,
):  # fmt: skip
    """Merge the splits of one head of one sequence, ``CHUNK`` at a time.

    ``SPLITS`` is a power of two, ``num_splits`` or more. Grid: (S, HEADS).
    """
    sequence, head = tl.program_id(0), tl.program_id(1)
    start = tl.load(query_start + sequence)
    num_tokens = tl.load(query_start + sequence + 1) - start
    length = tl.load(seq_lens + sequence)
    _, count, tiles = _tiles_of(length, window, num_splits, KEYS, LEAST_TILES, HAS_WINDOW)
    if num_tokens == 1 and count > 0:
        used = (count + tiles - 1) // tiles
        index = (sequence.to(tl.int64) * HEADS + head) * num_splits
        num_states = tl.num_programs(0).to(tl.int64) * HEADS * num_splits
        splits_P = tl.arange(0, SPLITS)
        greatest_P = tl.load(states + index + splits_P, splits_P < used, float("-inf"))
        total_P = tl.load(states + num_states + index + splits_P, splits_P < used, 0.0)
        top = tl.max(greatest_P, 0)
        total = tl.sum(total_P * tl.exp2(greatest_P - top), 0)
        dims_D = tl.arange(0, DIM)
        out_D = tl.zeros([DIM], tl.float32)
        for first in range(0, used, CHUNK):
            split_C = first + tl.arange(0, CHUNK)
            greatest_C = tl.load(states + index + split_C, split_C < used, float("-inf"))
            mask_CD = (split_C < used)[:, None] & (dims_D < HEAD_DIM)[None, :]
            place_C = (index + split_C) * HEAD_DIM
            part_CD = tl.load(parts + place_C[:, None] + dims_D[None, :], mask_CD, 0.0)
            out_D += tl.sum(part_CD * tl.exp2(greatest_C - top)[:, None], 0)
        place = (start.to(tl.int64) * HEADS + head) * HEAD_DIM
        tl.store(out + place + dims_D, (out_D / total).to(out.dtype.element_ty), dims_D < HEAD_DIM)
