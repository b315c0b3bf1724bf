"""Norms and rotary embedding of heads, and the write of keys and values, in one launch.

Keys are rounded to their dtype before they are written, as if they had been prepared first.

Shapes: T tokens, N heads of a program, F pairs of a head: half of head_dim, padded to a power of
two.
"""

# ruff: noqa: N803, N806 - the shape of an array is the upper-case end of its name
from __future__ import annotations

import triton
import triton.language as tl

from paged_backends.kernels.triton.cache import encode, power_of_two, scale_bytes
from paged_backends.kernels.triton.layer_ops import prepare, prepared


@triton.jit
def _write_heads(
    heads, norm, cos, sin, cache, slots, token_stride, head_stride, first_row, num_tokens,
    eps, offset, side, HAS_NORM: tl.constexpr, HAS_ROTARY: tl.constexpr, KV_HEADS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, HEAD_SIZE: tl.constexpr, HALF_DIM: tl.constexpr, ROWS: tl.constexpr,
    HALF: tl.constexpr, FLOAT8: tl.constexpr,
):  # fmt: skip
    """Prepare and write ROWS heads, of all tokens' heads one after another; ``side``: 0 for keys, 1
    for values."""
    row_N = first_row + tl.arange(0, ROWS)
    token_N, head_N = (row_N // KV_HEADS).to(tl.int64), row_N % KV_HEADS
    slot_N = tl.load(slots + token_N, token_N < num_tokens, -1)
    is_written_N = slot_N >= 0
    pair_F = tl.arange(0, HALF)
    mask_NF = is_written_N[:, None] & (pair_F < HALF_DIM)[None, :]
    place_N = token_N * token_stride + head_N * head_stride
    low_NF, high_NF = prepared(
        heads + place_N[:, None] + pair_F[None, :], norm, cos, sin, token_N, pair_F, mask_NF,
        HALF_DIM, eps, offset, HAS_NORM, HAS_ROTARY,
    )  # fmt: skip
    low_NF = low_NF.to(heads.dtype.element_ty)
    high_NF = high_NF.to(heads.dtype.element_ty)
    block_N, offset_N = slot_N // BLOCK_SIZE, slot_N % BLOCK_SIZE
    target_N = cache + ((block_N * 2 + side) * KV_HEADS + head_N) * HEAD_SIZE
    target_NF = (target_N + offset_N * (2 * HALF_DIM))[:, None] + pair_F[None, :]
    if FLOAT8:
        low_NF, high_NF = low_NF.to(tl.float32), high_NF.to(tl.float32)
        byte_N = tl.maximum(scale_bytes(low_NF), scale_bytes(high_NF))
        factor_N = power_of_two(254 - byte_N)
        low_NF, high_NF = encode(low_NF * factor_N[:, None]), encode(high_NF * factor_N[:, None])
        scale_place_N = target_N + BLOCK_SIZE * 2 * HALF_DIM + offset_N
        tl.store(scale_place_N, byte_N.to(tl.uint8), is_written_N)
    tl.store(target_NF, low_NF, mask_NF)
    tl.store(target_NF + HALF_DIM, high_NF, mask_NF)


@triton.jit(
    do_not_specialize=["num_tokens", "query_programs", "key_programs"],
    do_not_specialize_on_alignment=["slots"],
)
def prepare_and_write(
    query, key, value, cache, slots, query_norm, key_norm, cos, sin,
    query_token, query_head, key_token, key_head, value_token, value_head,
    num_tokens, query_programs, key_programs, eps, offset,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    HEAD_SIZE: tl.constexpr, HALF_DIM: tl.constexpr, HAS_QUERY_NORM: tl.constexpr,
    HAS_KEY_NORM: tl.constexpr, HAS_ROTARY: tl.constexpr, ROWS: tl.constexpr, HALF: tl.constexpr,
    FLOAT8: tl.constexpr,
):  # fmt: skip
    """Prepare queries [T, HEADS, head_dim] in place; write prepared keys, and values, into
    ``cache``. Strides of tokens and heads are given; slots as in ``write_tokens``.

    Grid: ``query_programs``, then ``key_programs`` for keys, then as many for values.
    """
    program = tl.program_id(0)
    if program < query_programs:
        prepare(
            query, query_norm, cos, sin, query_token, query_head, program * ROWS,
            num_tokens * HEADS, HEADS, HALF_DIM, eps, offset,
            HAS_QUERY_NORM, HAS_ROTARY, ROWS, HALF,
        )  # fmt: skip
    elif program < query_programs + key_programs:
        _write_heads(
            key, key_norm, cos, sin, cache, slots, key_token, key_head,
            (program - query_programs) * ROWS, num_tokens, eps, offset, 0,
            HAS_KEY_NORM, HAS_ROTARY, KV_HEADS, BLOCK_SIZE, HEAD_SIZE, HALF_DIM, ROWS, HALF, FLOAT8,
        )  # fmt: skip
    else:
        _write_heads(
            value, value, cos, sin, cache, slots, value_token, value_head,
            (program - query_programs - key_programs) * ROWS, num_tokens, eps, offset, 1,
            False, False, KV_HEADS, BLOCK_SIZE, HEAD_SIZE, HALF_DIM, ROWS, HALF, FLOAT8,
        )  # fmt: skip
