"""Writes of keys and values into a paged cache, copies of its blocks, and its numbers in float8.

Numbers in E4M3 (see :mod:`paged_backends.attention.float8`) are written by computing with their
bits. Many more are read than written: where ``NATIVE``, by the instructions for it of GPUs of
compute capability 8.9 or newer. Keys and values of a step are written by one launch, which may
prepare heads as well (norms, rotary embedding): keys are rounded to their dtype before they are
written, as if they had been prepared first. Blocks are copied by one launch for all layers.

Shapes: L layers, N blocks, tokens or heads of a program, F pairs of a head (half of head_dim), P
pairs of blocks, W words of a block, D head_dim; F and D padded to a power of two.
"""

# ruff: noqa: N803, N806 - the shape of an array is the upper-case end of its name
from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from paged_backends.device import to_device
from paged_backends.kernels.triton.layer_ops import prepare, prepared


@triton.jit
def scale_bytes(row_ND):
    """Return the bytes [N] int32 of the scales of rows [N, D] float32."""
    size_ND = tl.where(row_ND == row_ND, tl.abs(row_ND), 0.0)
    bits_N = tl.max(size_ND, 1).to(tl.int32, bitcast=True)
    # the greatest number is 1.75 * 2^8
    byte_N = (bits_N >> 23) - 8 + ((bits_N & 0x7FFFFF) > 0x600000).to(tl.int32)
    return tl.maximum(byte_N, 1)


@triton.jit
def power_of_two(byte):
    """Return ``2^(byte - 127)`` in float32, of bytes 1 .. 254 in any integer type."""
    return (byte.to(tl.int32) << 23).to(tl.float32, bitcast=True)


@triton.jit
def encode(number):
    """Return float32 numbers of at most 448 as bytes, to the nearest, ties to even; NaN what is
    not finite."""
    bits = number.to(tl.int32, bitcast=True)
    size_bits = bits & 0x7FFFFFFF
    # below 2^-6 numbers are multiples of 2^-9, as are the floats from 2^14 to 2^15
    small = (tl.abs(number) + 16384.0).to(tl.int32, bitcast=True) - 0x46800000
    large = ((size_bits + 0x7FFFF + ((size_bits >> 20) & 1)) >> 20) - (120 << 3)
    magnitude = tl.where(size_bits < (121 << 23), small, large)
    byte = magnitude | ((bits >> 24) & 0x80)
    return tl.where(size_bits < 0x7F800000, byte, 0x7F).to(tl.uint8)


@triton.jit
def decode(byte, TYPE: tl.constexpr, NATIVE: tl.constexpr):
    """Return what bytes stand for, in ``TYPE``, which is exact in all floating-point types."""
    if NATIVE:
        # by way of float32: the one instruction from float16 to bfloat16 has a quarter of the rate
        number = byte.to(tl.float8e4nv, bitcast=True).to(tl.float32).to(TYPE)
    else:
        # in a float16 of the same bits, exponents are 8 too low
        bits = byte.to(tl.uint16)
        half = ((bits & 0x80) << 8) | ((bits & 0x7F) << 7)
        grown = half.to(tl.float16, bitcast=True) * 256.0
        number = tl.where((bits & 0x7F) == 0x7F, float("nan"), grown).to(TYPE)
    return number


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


_WORDS = 1024
"""Words that a program copies."""


@triton.jit(
    do_not_specialize=["source_layer", "target_layer"],
    do_not_specialize_on_alignment=["origins", "destinations"],
)
def copy_words(
    source, target, origins, destinations, source_layer, target_layer, block_words,
    WORDS: tl.constexpr,
):  # fmt: skip
    """Copy block ``origins[i]`` of ``source`` to block ``destinations[i]`` of ``target``, in every
    layer; no block is both read and written.

    Blocks are contiguous, of ``block_words`` words, and so are those of a layer; the distances of
    layers are given. Grid: (number of blocks, block_words / WORDS, layers).
    """
    layer = tl.program_id(2).to(tl.int64)
    origin = layer * source_layer + tl.load(origins + tl.program_id(0)) * block_words
    destination = layer * target_layer + tl.load(destinations + tl.program_id(0)) * block_words
    word_N = tl.program_id(1) * WORDS + tl.arange(0, WORDS)
    is_there_N = word_N < block_words
    words_N = tl.load(source + origin + word_N, is_there_N)
    tl.store(target + destination + word_N, words_N, is_there_N)


def copy_blocks(caches_LN: Tensor, origins_P: Sequence[int], destinations_P: Sequence[int]) -> None:
    """Copy blocks within caches of one shape; every block is read before any is written.

    It does not wait for the device.

    Args:
        caches_LN: [L, N, ...], contiguous.
    """
    words_LNW = _as_words(caches_LN)
    if set(origins_P).isdisjoint(destinations_P):
        _launch(words_LNW, origins_P, words_LNW, destinations_P)
        return
    layers, _, width = words_LNW.shape
    staged_LPW = words_LNW.new_empty(layers, len(origins_P), width)
    _launch(words_LNW, origins_P, staged_LPW, range(len(origins_P)))
    _launch(staged_LPW, range(len(origins_P)), words_LNW, destinations_P)


def _as_words(caches_LN: Tensor) -> Tensor:
    """Return [L, N, W] in the widest words that a block has a whole number of."""
    bytes_LNB = caches_LN.view(caches_LN.shape[0], caches_LN.shape[1], -1).view(torch.uint8)
    for dtype in (torch.int64, torch.int32, torch.int16):
        if bytes_LNB.shape[-1] % dtype.itemsize == 0:
            return bytes_LNB.view(dtype)
    return bytes_LNB


def _launch(
    source_LNW: Tensor,
    origins_P: Sequence[int],
    target_LNW: Tensor,
    destinations_P: Sequence[int],
) -> None:
    layers, _, width = source_LNW.shape
    origins, destinations = (
        to_device(np.array(blocks, np.int64), source_LNW.device)
        for blocks in (origins_P, destinations_P)
    )
    copy_words[(len(origins_P), -(-width // _WORDS), layers)](
        source_LNW,
        target_LNW,
        origins,
        destinations,
        source_LNW.stride(0),
        target_LNW.stride(0),
        width,
        WORDS=_WORDS,
    )


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
