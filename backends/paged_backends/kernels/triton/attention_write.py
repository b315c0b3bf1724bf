"""Writes the keys and values of a step into the slots of a paged cache, both in one launch."""

# ruff: noqa: N803, N806 - constants are upper-case, and the shape of an array is the end of its name
from __future__ import annotations

import triton
import triton.language as tl

from paged_backends.kernels.triton.attention_float8 import encode, power_of_two, scale_bytes


@triton.jit
def _write_rows(
    row_ND, head_N, offset_N, is_written_N,
    BLOCK_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr, FLOAT8: tl.constexpr,
):  # fmt: skip
    """Write rows [N, D] at ``offset_N`` of their blocks; ``head_N`` points to a block's head."""
    dims_D = tl.arange(0, DIM)
    place_ND = head_N[:, None] + (offset_N * HEAD_DIM)[:, None] + dims_D[None, :]
    mask_ND = is_written_N[:, None] & (dims_D < HEAD_DIM)[None, :]
    if FLOAT8:
        row_ND = row_ND.to(tl.float32)
        byte_N = scale_bytes(row_ND)
        tl.store(place_ND, encode(row_ND * power_of_two(254 - byte_N)[:, None]), mask_ND)
        tl.store(head_N + BLOCK_SIZE * HEAD_DIM + offset_N, byte_N.to(tl.uint8), is_written_N)
    else:
        tl.store(place_ND, row_ND, mask_ND)


@triton.jit(do_not_specialize=["num_tokens"], do_not_specialize_on_alignment=["slots"])
def write_tokens(
    key, value, cache, slots, key_token, key_head, value_token, value_head, num_tokens,
    KV_HEADS: tl.constexpr, BLOCK_SIZE: tl.constexpr, HEAD_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr, DIM: tl.constexpr, TOKENS: tl.constexpr, FLOAT8: tl.constexpr,
):  # fmt: skip
    """Write keys and values [T, KV_HEADS, HEAD_DIM], whose strides are given, into ``cache``.

    A program writes ``TOKENS`` tokens of one head. Slots [T] int64; a negative one: the token is
    not written. ``HEAD_SIZE``: numbers, or bytes, of a head in a block.

    Grid: (tokens / TOKENS, KV_HEADS).
    """
    head = tl.program_id(1).to(tl.int64)
    token_N = tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    slot_N = tl.load(slots + token_N, token_N < num_tokens, -1)
    is_written_N = slot_N >= 0
    dims_D = tl.arange(0, DIM)
    mask_ND = is_written_N[:, None] & (dims_D < HEAD_DIM)[None, :]
    key_ND = tl.load(
        key + (token_N * key_token + head * key_head)[:, None] + dims_D[None, :], mask_ND, 0.0
    )
    value_ND = tl.load(
        value + (token_N * value_token + head * value_head)[:, None] + dims_D[None, :], mask_ND, 0.0
    )
    offset_N = slot_N % BLOCK_SIZE
    key_N = cache + (slot_N // BLOCK_SIZE * (2 * KV_HEADS) + head) * HEAD_SIZE
    value_N = key_N + KV_HEADS * HEAD_SIZE
    _write_rows(key_ND, key_N, offset_N, is_written_N, BLOCK_SIZE, HEAD_DIM, DIM, FLOAT8)
    _write_rows(value_ND, value_N, offset_N, is_written_N, BLOCK_SIZE, HEAD_DIM, DIM, FLOAT8)
