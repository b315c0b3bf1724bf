"""Attention of a tile of queries to a range of the cached keys of one sequence and head.

Keys are visited in tiles with a running softmax (Milakov and Gimelshein, "Online normalizer
calculation for softmax"; Dao, "FlashAttention-2"), in powers of two.

A row is a query of one of the heads that share the key head, so that a key is read once for all
of them. Shapes: R rows, N keys of a tile, D head_dim padded to a power of two.

``DOT`` is the type of what is multiplied: that of the layer, but float32 under the interpreter,
which computes with the bits of bfloat16 as integers.
"""

# ruff: noqa: N803, N806 - constants are upper-case, and the shape of an array is the end of its name
from __future__ import annotations

import triton
import triton.language as tl

from paged_backends.kernels.triton.attention_float8 import decode, power_of_two

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def _block_ids(table, first, end, BLOCK_SIZE: tl.constexpr, KEYS: tl.constexpr):
    """Return the block ids of the keys from ``first``: one if all are in one block, else [N]."""
    if BLOCK_SIZE % KEYS == 0:
        # a tile begins at a multiple of KEYS, and so ends in the block in which it begins
        ids = tl.load(table + first // BLOCK_SIZE, first < end, 0)
    else:
        position_N = first + tl.arange(0, KEYS)
        ids = tl.load(table + position_N // BLOCK_SIZE, position_N < end, 0)
    return ids.to(tl.int64)


@triton.jit
def _load_tile(
    key_N, offset_N, is_there_N, DOT: tl.constexpr, KV_HEADS: tl.constexpr,
    HEAD_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr, FLOAT8: tl.constexpr,
    NATIVE: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Return keys and values [N, D], zeros where there are none.

    ``key_N`` points to the keys of a head in the block of each, or of all.
    """
    dims_D = tl.arange(0, DIM)
    place_ND = key_N + (offset_N * HEAD_DIM)[:, None] + dims_D[None, :]
    if MASKED or DIM != HEAD_DIM:
        mask_ND = is_there_N[:, None] & (dims_D < HEAD_DIM)[None, :]
        key_ND = tl.load(place_ND, mask_ND, 0)
        value_ND = tl.load(place_ND + KV_HEADS * HEAD_SIZE, mask_ND, 0)
    else:
        key_ND = tl.load(place_ND)
        value_ND = tl.load(place_ND + KV_HEADS * HEAD_SIZE)
    if FLOAT8:
        key_ND = decode(key_ND, DOT, NATIVE)
        value_ND = decode(value_ND, DOT, NATIVE)
    return key_ND, value_ND


@triton.jit
def _scores(
    product_RN, position_R, position_N, slope_R, scale, soft_cap, window,
    HAS_WINDOW: tl.constexpr, HAS_CAP: tl.constexpr, HAS_SLOPES: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """Return scores in powers of two, minus infinity for keys that a query does not see."""
    score_RN = product_RN * (scale * LOG2_E)
    if HAS_CAP:
        # tanh, by a power of a negative number, which cannot overflow
        shrunk_RN = tl.exp2(tl.abs(score_RN) * (-2.0 / soft_cap))
        size_RN = (1.0 - shrunk_RN) / (1.0 + shrunk_RN) * (soft_cap * LOG2_E)
        score_RN = tl.where(score_RN < 0, -size_RN, size_RN)
    if HAS_SLOPES:
        distance_RN = position_R.to(tl.float32)[:, None] - position_N.to(tl.float32)[None, :]
        score_RN -= (slope_R * LOG2_E)[:, None] * distance_RN
    if MASKED:
        is_seen_RN = position_N[None, :] <= position_R[:, None]
        if HAS_WINDOW:
            is_seen_RN &= position_N[None, :] > (position_R - window)[:, None]
        score_RN = tl.where(is_seen_RN, score_RN, float("-inf"))
    return score_RN


@triton.jit
def attend_keys(
    query_RD, position_R, slope_R, greatest_R, total_R, out_RD,
    cache_head, table, begin, end, scale, soft_cap, window,
    KV_HEADS: tl.constexpr, BLOCK_SIZE: tl.constexpr, HEAD_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr, DIM: tl.constexpr, KEYS: tl.constexpr, HAS_WINDOW: tl.constexpr,
    HAS_CAP: tl.constexpr, HAS_SLOPES: tl.constexpr, FLOAT8: tl.constexpr, NATIVE: tl.constexpr,
    DOT: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Continue the softmax over the keys ``begin .. end``.

    Args:
        position_R: of the queries; a query sees keys up to its own position.
        greatest_R: the greatest score so far, minus infinity at first.
        total_R: the sum of weights so far, relative to the greatest.
        out_RD: the weighted sum of values so far.
        cache_head: points to the keys of the head in block 0.
        table: points to the block table of the sequence.
        begin: a multiple of ``KEYS``.
        MASKED: whether ``end`` is no multiple of ``KEYS``, or some query does not see all keys.

    Returns:
        The three states.
    """
    query_RD = query_RD.to(DOT)
    ids = _block_ids(table, begin, end, BLOCK_SIZE, KEYS)
    for first in range(begin, end, KEYS):
        position_N = first + tl.arange(0, KEYS)
        is_there_N = position_N < end
        if BLOCK_SIZE % KEYS == 0:
            offset_N = first % BLOCK_SIZE + tl.arange(0, KEYS)
            key_N = cache_head + ids * (2 * KV_HEADS * HEAD_SIZE)
            head_N = key_N
        else:
            offset_N = position_N % BLOCK_SIZE
            key_N = cache_head + ids * (2 * KV_HEADS * HEAD_SIZE)
            head_N = key_N[:, None]
        # read a tile ahead, since the addresses of the next keys depend on it
        ids = _block_ids(table, first + KEYS, end, BLOCK_SIZE, KEYS)
        key_ND, value_ND = _load_tile(
            head_N, offset_N, is_there_N, DOT, KV_HEADS,
            HEAD_SIZE, HEAD_DIM, DIM, FLOAT8, NATIVE, MASKED,
        )  # fmt: skip
        product_RN = tl.dot(query_RD, tl.trans(key_ND.to(DOT)), input_precision="ieee")
        if FLOAT8:
            scales_N = key_N + BLOCK_SIZE * HEAD_DIM + offset_N
            product_RN *= power_of_two(tl.load(scales_N, is_there_N, 127))[None, :]
        score_RN = _scores(
            product_RN, position_R, position_N, slope_R, scale, soft_cap, window,
            HAS_WINDOW, HAS_CAP, HAS_SLOPES, MASKED,
        )  # fmt: skip
        top_R = tl.maximum(greatest_R, tl.max(score_RN, 1))
        base_R = tl.where(top_R == float("-inf"), 0.0, top_R)
        weight_RN = tl.exp2(score_RN - base_R[:, None])
        factor_R = tl.exp2(greatest_R - base_R)
        greatest_R = top_R
        total_R = total_R * factor_R + tl.sum(weight_RN, 1)
        if FLOAT8:
            scales_N += KV_HEADS * HEAD_SIZE
            scale_N = power_of_two(tl.load(scales_N, is_there_N, 127))
            if DOT == tl.float16:  # noqa: SIM300 - it is no constant of Python
                # a small scale would leave few bits of a weight in its range
                value_ND = (value_ND * scale_N[:, None]).to(DOT)
            else:
                weight_RN *= scale_N[None, :]
        weight_RN = weight_RN.to(DOT)
        out_RD = out_RD * factor_R[:, None]
        out_RD = tl.dot(weight_RN, value_ND.to(DOT), out_RD, input_precision="ieee")
    return greatest_R, total_R, out_RD
