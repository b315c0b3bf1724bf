"""The best token of each row, and random draws with min_p, top_k and top_p.

A row is divided into chunks, which are looked at side by side: first for the best token, then for
the sum of the weights. A draw without ``top_k`` and ``top_p`` then looks at one chunk more. With
them, tokens are drawn best first, by :func:`~.sampling_selection.select`. Few tokens are ever of a
rank that matters, so these are collected before: all that are not lower than the highest of some
marks below the peak that is low enough.

Weights are integers, multiples of ``2 ** -42`` of the greatest; what is smaller is never drawn.
Their sums are exact, so a draw depends on its row alone, and not on how the row is divided.

Shapes: R rows, V vocabulary, C chunks of a row, M marks, P places of collected tokens.
"""

# ruff: noqa: N803, N806 - constants of a kernel are upper-case, and so is the shape of an array
from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from paged_backends.kernels.triton.sampling_selection import (
    best_of_row,
    bounded,
    from_key,
    is_filtered_by_rank,
    is_random,
    keys_of,
    lightest_key,
    logits_of,
    place_of,
    reach_of,
    select,
    share_of,
    weights_of,
)

_CHUNK = 4096
_MARKS = 8
_POOL = 8192
"""Tokens of a row that are collected at most; if more matter, the row is looked at itself."""
_POOL_TILE, _POOL_LEVELS = tl.constexpr(256), tl.constexpr(16)
_ROW_TILE, _ROW_LEVELS = tl.constexpr(1024), tl.constexpr(4)
"""Tokens that are compared at once, and with how many levels: with many where there are few tokens,
since most of a pass is then what follows the comparisons."""
_WEIGHT_BITS = 42
_SUM_BITS = 62
_MARK_DEPTH = tl.constexpr(-30 / _MARKS**2)
"""In temperatures. The last mark is where weights end, the others are closer to the peak."""


@triton.jit
def best_of_chunks(logits, best, row_stride, vocab_size, num_chunks, CHUNK: tl.constexpr):
    """A program finds the best token of a chunk: its key, then its inverted id."""
    row, chunk = tl.program_id(0), tl.program_id(1)
    ids = chunk * CHUNK + tl.arange(0, CHUNK)
    places = logits + row.to(tl.int64) * row_stride + ids
    keys = keys_of(tl.load(places, ids < vocab_size, float("-inf")).to(tl.float32))
    ranked = (keys.to(tl.int64) << 32) | (ids ^ 0x7FFFFFFF).to(tl.int64)
    tl.store(best + row * num_chunks + chunk, tl.max(ranked, 0))


@triton.jit
def take_best(best, tokens, peaks, num_chunks, CHUNKS: tl.constexpr):
    """A program stores the best token of a row, and its logit."""
    row = tl.program_id(0)
    token, key = best_of_row(best, row, num_chunks, CHUNKS)
    tl.store(tokens + row, token)
    tl.store(peaks + row, logits_of(key))


@triton.jit
def weigh_chunks(
    logits, best, sums, levels, mark_sums, mark_counts, temperatures, min_ps, top_ks, top_ps,
    row_stride, vocab_size, num_chunks, scale,
    CHUNK: tl.constexpr, CHUNKS: tl.constexpr, MARKS: tl.constexpr,
    GREEDY_BELOW: tl.constexpr,
):  # fmt: skip
    """A program adds the weights of a chunk; and of its tokens above each mark, which it counts."""
    row, chunk = tl.program_id(0), tl.program_id(1)
    temperature = tl.load(temperatures + row)
    _, key = best_of_row(best, row, num_chunks, CHUNKS)
    peak = logits_of(key)
    if is_random(temperature, peak, GREEDY_BELOW):
        temperature = bounded(temperature)
        ids = chunk * CHUNK + tl.arange(0, CHUNK)
        places = logits + row.to(tl.int64) * row_stride + ids
        values = tl.load(places, ids < vocab_size, float("-inf")).to(tl.float32)
        weights = weights_of(values, peak, temperature, tl.load(min_ps + row), scale)
        tl.store(sums + row * num_chunks + chunk, tl.sum(weights, 0))
        if is_filtered_by_rank(tl.load(top_ks + row), tl.load(top_ps + row), vocab_size):
            first = (row * num_chunks + chunk) * MARKS
            for mark in tl.static_range(MARKS):
                level = peak + temperature * _MARK_DEPTH * ((mark + 1) * (mark + 1))
                above = (values >= level) & (ids < vocab_size)
                tl.store(levels + row * MARKS + mark, level)
                tl.store(mark_sums + first + mark, tl.sum(tl.where(above, weights, 0), 0))
                tl.store(mark_counts + first + mark, tl.sum(above.to(tl.int32), 0))


@triton.jit
def _mark_of(mark_sums, counts_CM, total, top_k, top_p, vocab_size, MARKS: tl.constexpr):
    """Return the highest mark that has every token above it whose rank matters, and how many."""
    marks = tl.arange(0, MARKS)
    counts = tl.sum(counts_CM, 0)
    if (top_k > 0) & (top_k < vocab_size):
        enough = (counts >= top_k) | (mark_sums >= total)
    else:
        enough = mark_sums >= reach_of(top_p, total)
    mark = tl.min(tl.where(enough, marks, MARKS - 1), 0)
    return mark, tl.sum(tl.where(marks == mark, counts, 0), 0)


@triton.jit
def collect_chunks(
    logits, best, sums, levels, mark_sums, mark_counts, pool, pool_ids, sizes,
    temperatures, top_ks, top_ps, row_stride, vocab_size, num_chunks,
    CHUNK: tl.constexpr, CHUNKS: tl.constexpr, MARKS: tl.constexpr, POOL: tl.constexpr,
    GREEDY_BELOW: tl.constexpr,
):  # fmt: skip
    """A program collects the tokens of a chunk whose rank may matter, in the order of their ids."""
    row, chunk = tl.program_id(0), tl.program_id(1)
    temperature = tl.load(temperatures + row)
    top_k, top_p = tl.load(top_ks + row), tl.load(top_ps + row)
    _, key = best_of_row(best, row, num_chunks, CHUNKS)
    peak = logits_of(key)
    if is_random(temperature, peak, GREEDY_BELOW) & is_filtered_by_rank(top_k, top_p, vocab_size):
        chunks, marks = tl.arange(0, CHUNKS), tl.arange(0, MARKS)
        at = (row * num_chunks + chunks)[:, None] * MARKS + marks[None, :]
        there = (chunks < num_chunks)[:, None] & (marks < MARKS)[None, :]
        counts = tl.load(mark_counts + at, there, 0)
        total = tl.sum(tl.load(sums + row * num_chunks + chunks, chunks < num_chunks, 0), 0)
        reached = tl.sum(tl.load(mark_sums + at, there, 0), 0)
        mark, size = _mark_of(reached, counts, total, top_k, top_p, vocab_size, MARKS)
        if chunk == 0:
            tl.store(sizes + row, tl.where(size > POOL, 0, size))
        of_mark = tl.sum(tl.where(marks[None, :] == mark, counts, 0), 1)
        if (size <= POOL) & (tl.sum(tl.where(chunks == chunk, of_mark, 0), 0) > 0):
            before = tl.sum(tl.where(chunks < chunk, of_mark, 0), 0)
            ids = chunk * CHUNK + tl.arange(0, CHUNK)
            places = logits + row.to(tl.int64) * row_stride + ids
            values = tl.load(places, ids < vocab_size, float("-inf")).to(tl.float32)
            above = (values >= tl.load(levels + row * MARKS + mark)) & (ids < vocab_size)
            to = row * POOL + before + tl.cumsum(above.to(tl.int32), 0) - 1
            tl.store(pool + to, values, above)
            tl.store(pool_ids + to, ids, above)


@triton.jit
def _draw_by_id(
    row_logits, chunk_sums, uniform, total, peak, temperature, min_p, scale, vocab_size,
    CHUNK: tl.constexpr, CHUNKS: tl.constexpr,
):  # fmt: skip
    """Draw where ranks do not matter: sums run over the vocabulary. First the chunk is found."""
    target = share_of(uniform, total)
    chunk = tl.sum((tl.cumsum(chunk_sums, 0) <= target).to(tl.int32), 0)
    before = tl.sum(tl.where(tl.arange(0, CHUNKS) < chunk, chunk_sums, 0), 0)
    ids = chunk * CHUNK + tl.arange(0, CHUNK)
    values = tl.load(row_logits + ids, ids < vocab_size, float("-inf")).to(tl.float32)
    weights = weights_of(values, peak, temperature, min_p, scale)
    inside = tl.cumsum(weights, 0) <= target - before
    return tl.minimum(chunk * CHUNK + tl.sum(inside.to(tl.int32), 0), vocab_size - 1)


@triton.jit
def _draw_best_first(
    values, size, uniform, total, top_k, top_p, peak_key, peak, temperature, min_p, scale,
    CHUNK: tl.constexpr, TILE: tl.constexpr, LEVELS: tl.constexpr,
):  # fmt: skip
    """Draw where the ranking is filtered: sums run over it. Return the token's place.

    No token that is found later is below the last one that a filter keeps.
    """
    low = lightest_key(peak, temperature)
    if top_k > 0:
        count, weight = from_key(values, size, low, peak, temperature, min_p, scale, TILE)
        if top_k <= count:  # else all that can be drawn are kept
            target = (top_k - 1).to(tl.int64)
            low, nth, _ = select(
                values, size, target, low, peak_key, peak, temperature, min_p, scale,
                True, TILE, LEVELS,
            )  # fmt: skip
            count, total = from_key(values, size, low + 1, peak, temperature, min_p, scale, TILE)
            weight = weights_of(logits_of(low), peak, temperature, min_p, scale)
            total += nth * weight
    if top_p < 1:
        target = tl.maximum(reach_of(top_p, total) - 1, 0)
        low, _, total = select(
            values, size, target, low, peak_key, peak, temperature, min_p, scale,
            False, TILE, LEVELS,
        )  # fmt: skip
    target = share_of(uniform, total)
    key, nth, _ = select(
        values, size, target, low, peak_key, peak, temperature, min_p, scale, False, TILE, LEVELS
    )
    return place_of(values, size, key, nth, CHUNK)


@triton.jit
def draw_tokens(
    logits, best, sums, pool, pool_ids, sizes,
    temperatures, min_ps, top_ks, top_ps, uniforms, tokens, peaks,
    row_stride, vocab_size, num_chunks, scale,
    CHUNK: tl.constexpr, CHUNKS: tl.constexpr, POOL: tl.constexpr, GREEDY_BELOW: tl.constexpr,
):  # fmt: skip
    """A program draws the token of a row."""
    row = tl.program_id(0)
    token, peak_key = best_of_row(best, row, num_chunks, CHUNKS)
    peak = logits_of(peak_key)
    tl.store(peaks + row, peak)
    temperature = tl.load(temperatures + row)
    if is_random(temperature, peak, GREEDY_BELOW):
        temperature = bounded(temperature)
        chunks = tl.arange(0, CHUNKS)
        chunk_sums = tl.load(sums + row * num_chunks + chunks, chunks < num_chunks, 0)
        total = tl.sum(chunk_sums, 0)
        row_logits = logits + row.to(tl.int64) * row_stride
        min_p, top_k, top_p = tl.load(min_ps + row), tl.load(top_ks + row), tl.load(top_ps + row)
        uniform = tl.load(uniforms + row)
        if is_filtered_by_rank(top_k, top_p, vocab_size):
            collected = tl.load(sizes + row)
            if collected > 0:
                place = _draw_best_first(
                    pool + row * POOL, collected, uniform, total, top_k, top_p, peak_key, peak,
                    temperature, min_p, scale, CHUNK, _POOL_TILE, _POOL_LEVELS,
                )  # fmt: skip
                token = tl.load(pool_ids + row * POOL + place).to(tl.int64)
            else:
                token = _draw_best_first(
                    row_logits, vocab_size, uniform, total, top_k, top_p, peak_key, peak,
                    temperature, min_p, scale, CHUNK, _ROW_TILE, _ROW_LEVELS,
                ).to(tl.int64)  # fmt: skip
        else:
            token = _draw_by_id(
                row_logits, chunk_sums, uniform, total, peak, temperature, min_p, scale, vocab_size,
                CHUNK, CHUNKS,
            ).to(tl.int64)  # fmt: skip
    tl.store(tokens + row, token)


def best_tokens(logits_RV: Tensor) -> tuple[Tensor, Tensor]:
    """Return the best token [R] int64 of each row, the first of equals, a NaN if there is any; and
    its logit [R] float32."""
    best_RC, _ = _best_of_chunks(logits_RV)
    count, num_chunks = best_RC.shape
    tokens_R = best_RC.new_empty(count)
    peaks_R = best_RC.new_empty(count, dtype=torch.float32)
    if count:
        with torch.cuda.device(logits_RV.get_device()):
            take_best[(count,)](
                *(best_RC, tokens_R, peaks_R, num_chunks),
                CHUNKS=triton.next_power_of_2(num_chunks),
            )
    return tokens_R, peaks_R


def draw(
    logits_RV: Tensor,
    *,
    temperature_R: Tensor,
    min_p_R: Tensor,
    top_k_R: Tensor,
    top_p_R: Tensor,
    uniform_R: Tensor,
    greedy_below: float,
) -> tuple[Tensor, Tensor]:
    """Draw a token for each row, whose numbers may be of 16 bits, by
    :class:`~paged_backends.sampling.device_sampling.DeviceParams`.

    Args:
        greedy_below: temperatures below it take the best token.

    Returns:
        The tokens [R] int64, and the greatest logits [R] float32: NaN if any of a row is. The token
        of a row whose greatest logit is not finite is the first that has it.
    """
    best_RC, chunk = _best_of_chunks(logits_RV)
    count, num_chunks = best_RC.shape
    tokens_R = best_RC.new_empty(count)
    peaks_R = best_RC.new_empty(count, dtype=torch.float32)
    if not count:
        return tokens_R, peaks_R
    vocab_size = logits_RV.shape[1]
    scale = 2.0 ** min(_WEIGHT_BITS, _SUM_BITS - vocab_size.bit_length())
    sums_RC = torch.empty_like(best_RC)
    levels_RM = peaks_R.new_empty((count, _MARKS))
    sums_RCM = best_RC.new_empty((count, num_chunks, _MARKS))
    counts_RCM = sums_RCM.new_empty(sums_RCM.shape, dtype=torch.int32)
    pool_RP = logits_RV.new_empty((count, _POOL))
    ids_RP = counts_RCM.new_empty((count, _POOL))
    sizes_R = counts_RCM.new_empty(count)
    filters = (top_k_R, top_p_R)
    shape = (logits_RV.stride(0), vocab_size, num_chunks)
    constants: dict[str, Any] = {
        "CHUNK": chunk,
        "CHUNKS": triton.next_power_of_2(num_chunks),
        "GREEDY_BELOW": greedy_below,
    }
    with torch.cuda.device(logits_RV.get_device()):
        weigh_chunks[(count, num_chunks)](
            *(logits_RV, best_RC, sums_RC, levels_RM, sums_RCM, counts_RCM),
            *(temperature_R, min_p_R, *filters, *shape, scale),
            **constants,
            MARKS=_MARKS,
            num_warps=8,
        )
        collect_chunks[(count, num_chunks)](
            *(logits_RV, best_RC, sums_RC, levels_RM, sums_RCM, counts_RCM),
            *(pool_RP, ids_RP, sizes_R),
            *(temperature_R, *filters, *shape),
            **constants,
            MARKS=_MARKS,
            POOL=_POOL,
            num_warps=8,
        )
        draw_tokens[(count,)](
            *(logits_RV, best_RC, sums_RC, pool_RP, ids_RP, sizes_R),
            *(temperature_R, min_p_R, *filters, uniform_R, tokens_R, peaks_R, *shape, scale),
            **constants,
            POOL=_POOL,
            num_warps=8,
        )
    return tokens_R, peaks_R


def _best_of_chunks(logits_RV: Tensor) -> tuple[Tensor, int]:
    """Return the best tokens of chunks [R, C] int64, and the size of a chunk."""
    count, vocab_size = logits_RV.shape
    chunk = min(_CHUNK, triton.next_power_of_2(vocab_size))
    num_chunks = triton.cdiv(vocab_size, chunk)
    best_RC = torch.empty((count, num_chunks), dtype=torch.int64, device=logits_RV.device)
    if count:
        with torch.cuda.device(logits_RV.get_device()):
            best_of_chunks[(count, num_chunks)](
                logits_RV, best_RC, logits_RV.stride(0), vocab_size, num_chunks, CHUNK=chunk
            )
    return best_RC, chunk
