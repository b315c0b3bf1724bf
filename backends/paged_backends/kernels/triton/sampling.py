"""The best token of each row, and random draws with min_p, top_k and top_p, without a sort.

Tokens are ranked by falling logit, and equals by rising id, so every filter keeps a prefix of the
ranking, and a draw is the first token at which the sum of weights exceeds a share of the total.
Each of these is one selection: the greatest logit such that the tokens from it upwards are enough,
by count or by weight. It is found by bisection over the row, as a k-th largest number is without a
sort; that a nucleus can be found so too is from FlashInfer's sampling (Ye et al., 2025,
https://flashinfer.ai/2025/03/10/sampling.html), which rejects and draws again, where this inverts
the cumulative distribution.

Weights are integers, multiples of ``2 ** -42`` of the greatest: their sums are exact, so a draw
depends on its row alone, however the row is divided among programs and threads. What is smaller is
never drawn.

Shapes: R rows, V vocabulary, C chunks of a row.
"""

# ruff: noqa: N803, N806 - constants of a kernel are upper-case, and so is the shape of an array
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from paged_backends.sampling.row import GREEDY_BELOW

_CHUNK = 4096
_WEIGHT_BITS = 42
_SUM_BITS = 62

_NAN_KEY = tl.constexpr(0x7FFFFFFF)
_GREEDY_BELOW = tl.constexpr(GREEDY_BELOW)
_MAX_TEMPERATURE = tl.constexpr(1e30)
_LIGHTEST = tl.constexpr(-30.0)
"""exp(-30) is less than the least weight."""
_STEPS_BY_VALUE = tl.constexpr(16)


@triton.jit
def _keys_of(logits):
    """Integers in the order of the logits; NaN is the greatest."""
    bits = logits.to(tl.int32, bitcast=True)
    keys = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    keys = tl.where(logits == 0, 0, keys)  # both zeros
    return tl.where(logits != logits, _NAN_KEY, keys)


@triton.jit
def _logits_of(keys):
    """The inverse of :func:`_keys_of`."""
    keys = keys.to(tl.int32)
    return tl.where(keys < 0, keys ^ 0x7FFFFFFF, keys).to(tl.float32, bitcast=True)


@triton.jit
def _weights_of(logits, peak, temperature, min_p, scale):
    """Weights as integers; ``scale`` is that of the peak, and 0 of what ``min_p`` filters."""
    weights = tl.exp((logits - peak) / temperature)
    return (tl.where(weights < min_p, 0.0, weights) * scale).to(tl.int64)


@triton.jit
def best_of_chunks(logits, best, row_stride, vocab_size, num_chunks, CHUNK: tl.constexpr):
    """A program finds the best token of a chunk: its key, then its inverted id."""
    row, chunk = tl.program_id(0), tl.program_id(1)
    ids = chunk * CHUNK + tl.arange(0, CHUNK)
    places = logits + row.to(tl.int64) * row_stride + ids
    keys = _keys_of(tl.load(places, ids < vocab_size, float("-inf")).to(tl.float32))
    ranked = (keys.to(tl.int64) << 32) | (ids ^ 0x7FFFFFFF).to(tl.int64)
    tl.store(best + row * num_chunks + chunk, tl.max(ranked, 0))


@triton.jit
def _best_of_row(best, row, num_chunks, CHUNKS: tl.constexpr):
    """Return the best token of a row, and its key."""
    chunks = tl.arange(0, CHUNKS)
    ranked = tl.load(best + row * num_chunks + chunks, chunks < num_chunks, -0x7FFFFFFFFFFFFFFF)
    ranked = tl.max(ranked, 0)
    return (ranked & 0x7FFFFFFF) ^ 0x7FFFFFFF, ranked >> 32


@triton.jit
def take_best(best, tokens, num_chunks, CHUNKS: tl.constexpr):
    """A program stores the best token of a row."""
    row = tl.program_id(0)
    token, _ = _best_of_row(best, row, num_chunks, CHUNKS)
    tl.store(tokens + row, token)


@triton.jit
def weigh_chunks(
    logits, best, sums, temperatures, min_ps, row_stride, vocab_size, num_chunks, scale,
    CHUNK: tl.constexpr, CHUNKS: tl.constexpr,
):  # fmt: skip
    """A program adds the weights of a chunk, of a row that is drawn from at random."""
    row, chunk = tl.program_id(0), tl.program_id(1)
    temperature = tl.load(temperatures + row)
    _, key = _best_of_row(best, row, num_chunks, CHUNKS)
    peak = _logits_of(key)
    if (temperature >= _GREEDY_BELOW) & (tl.abs(peak) < float("inf")):
        temperature = tl.minimum(temperature, _MAX_TEMPERATURE)
        ids = chunk * CHUNK + tl.arange(0, CHUNK)
        places = logits + row.to(tl.int64) * row_stride + ids
        values = tl.load(places, ids < vocab_size, float("-inf")).to(tl.float32)
        weights = _weights_of(values, peak, temperature, tl.load(min_ps + row), scale)
        tl.store(sums + row * num_chunks + chunk, tl.sum(weights, 0))


@triton.jit
def _share(part, total):
    """The sum that a draw exceeds: ``part`` in [0, 1) of a total."""
    return tl.minimum((part * total.to(tl.float64)).to(tl.int64), total - 1)


@triton.jit
def _draw_by_id(
    row_logits, chunk_sums, uniform, total, peak, temperature, min_p, scale, vocab_size,
    CHUNK: tl.constexpr, CHUNKS: tl.constexpr,
):  # fmt: skip
    """Draw where nothing is ranked: sums run over the vocabulary. First the chunk is found."""
    target = _share(uniform, total)
    chunk = tl.sum((tl.cumsum(chunk_sums, 0) <= target).to(tl.int32), 0)
    before = tl.sum(tl.where(tl.arange(0, CHUNKS) < chunk, chunk_sums, 0), 0)
    ids = chunk * CHUNK + tl.arange(0, CHUNK)
    values = tl.load(row_logits + ids, ids < vocab_size, float("-inf")).to(tl.float32)
    weights = _weights_of(values, peak, temperature, min_p, scale)
    inside = tl.cumsum(weights, 0) <= target - before
    return chunk * CHUNK + tl.sum(inside.to(tl.int32), 0)


@triton.jit
def _from_key(row_logits, middle, peak, temperature, min_p, scale, vocab_size, CHUNK: tl.constexpr):
    """Look at the tokens from a key upwards: the sum of their weights, how many they are, and the
    least of their keys; and find the greatest key below."""
    sums = tl.zeros([CHUNK], tl.int64)
    counts = tl.zeros([CHUNK], tl.int32)
    least = tl.full([CHUNK], 0x7FFFFFFF, tl.int32)
    below = tl.full([CHUNK], -0x7FFFFFFF, tl.int32)
    for first in range(0, vocab_size, CHUNK):
        ids = first + tl.arange(0, CHUNK)
        values = tl.load(row_logits + ids, ids < vocab_size, float("-inf")).to(tl.float32)
        keys = _keys_of(values)
        above = keys >= middle
        weights = _weights_of(values, peak, temperature, min_p, scale)
        sums += tl.where(above, weights, 0)
        counts += above.to(tl.int32)
        least = tl.minimum(least, tl.where(above, keys, 0x7FFFFFFF))
        below = tl.maximum(below, tl.where(above, -0x7FFFFFFF, keys))
    return tl.sum(sums, 0), tl.sum(counts, 0), tl.min(least, 0), tl.max(below, 0)


@triton.jit
def _select(
    row_logits, target, rank, peak_key, peak, temperature, min_p, scale, vocab_size,
    CHUNK: tl.constexpr,
):  # fmt: skip
    """Find the first token of the ranking at which the sum exceeds ``target``, less than the total,
    or whose rank is ``rank``, from 1.

    Returns its key, its place among the tokens of that key, from 1, and the sum up to it.
    """
    # enough from `low` upwards, not enough from `high` upwards
    low = _keys_of(peak + temperature * _LIGHTEST).to(tl.int64)
    high = peak_key + 1
    sum_above = tl.full([], 0, tl.int64)
    count_above = tl.full([], 0, tl.int32)
    step = tl.full([], 0, tl.int32)
    while high - low > 1:
        middle = low + (high - low) // 2
        if step < _STEPS_BY_VALUE:  # most of the keys are those of numbers near zero
            middle = _keys_of(_logits_of(low) * 0.5 + _logits_of(high - 1) * 0.5).to(tl.int64)
            middle = tl.minimum(tl.maximum(middle, low + 1), high - 1)
        weight, count, least, below = _from_key(
            row_logits, middle, peak, temperature, min_p, scale, vocab_size, CHUNK
        )
        if (weight > target) | (count >= rank):
            low = least.to(tl.int64)
        else:
            high = below.to(tl.int64) + 1
            sum_above = weight
            count_above = count
        step += 1
    weight = _weights_of(_logits_of(low), peak, temperature, min_p, scale)
    by_sum = (target - sum_above) // tl.maximum(weight, 1) + 1
    place = tl.minimum(by_sum, (rank - count_above).to(tl.int64))
    return low, place, sum_above + place * weight


@triton.jit
def _token_at(row_logits, key, place, vocab_size, CHUNK: tl.constexpr):
    """Return the id of one of the tokens of a key, by its place among them."""
    token = tl.full([], 0, tl.int64)
    passed = tl.full([], 0, tl.int64)
    first = tl.full([], 0, tl.int32)
    while passed < place:
        ids = first + tl.arange(0, CHUNK)
        inside = ids < vocab_size
        values = tl.load(row_logits + ids, inside, float("-inf")).to(tl.float32)
        equal = ((_keys_of(values) == key) & inside).to(tl.int64)
        token = first + tl.sum((tl.cumsum(equal, 0) < place - passed).to(tl.int64), 0)
        passed += tl.sum(equal, 0)
        first += CHUNK
    return token


@triton.jit
def _draw_best_first(
    row_logits, uniform, total, top_k, top_p, peak_key, peak, temperature, min_p, scale, vocab_size,
    CHUNK: tl.constexpr,
):  # fmt: skip
    """Draw where the ranking is filtered: sums run over it, best first."""
    if (top_k > 0) & (top_k < vocab_size):
        _, _, total = _select(
            row_logits, total - 1, top_k, peak_key, peak, temperature, min_p, scale, vocab_size,
            CHUNK,
        )  # fmt: skip
    if top_p < 1:
        reach = tl.ceil(top_p * total.to(tl.float64)).to(tl.int64)
        _, _, total = _select(
            row_logits, tl.maximum(reach - 1, 0), vocab_size, peak_key, peak, temperature, min_p,
            scale, vocab_size, CHUNK,
        )  # fmt: skip
    key, place, _ = _select(
        row_logits, _share(uniform, total), vocab_size, peak_key, peak, temperature, min_p, scale,
        vocab_size, CHUNK,
    )  # fmt: skip
    return _token_at(row_logits, key, place, vocab_size, CHUNK)


@triton.jit
def draw_tokens(
    logits, best, sums, temperatures, min_ps, top_ks, top_ps, uniforms, tokens, peaks,
    row_stride, vocab_size, num_chunks, scale, CHUNK: tl.constexpr, CHUNKS: tl.constexpr,
):  # fmt: skip
    """A program draws the token of a row."""
    row = tl.program_id(0)
    token, peak_key = _best_of_row(best, row, num_chunks, CHUNKS)
    peak = _logits_of(peak_key)
    tl.store(peaks + row, peak)
    temperature = tl.load(temperatures + row)
    if (temperature >= _GREEDY_BELOW) & (tl.abs(peak) < float("inf")):
        temperature = tl.minimum(temperature, _MAX_TEMPERATURE)
        chunks = tl.arange(0, CHUNKS)
        chunk_sums = tl.load(sums + row * num_chunks + chunks, chunks < num_chunks, 0)
        total = tl.sum(chunk_sums, 0)
        row_logits = logits + row.to(tl.int64) * row_stride
        uniform = tl.load(uniforms + row).to(tl.float64)
        min_p, top_k = tl.load(min_ps + row), tl.load(top_ks + row)
        top_p = tl.load(top_ps + row).to(tl.float64)
        if ((top_k > 0) & (top_k < vocab_size)) | (top_p < 1):
            token = _draw_best_first(
                row_logits, uniform, total, top_k, top_p, peak_key, peak, temperature, min_p, scale,
                vocab_size, CHUNK,
            ).to(tl.int64)  # fmt: skip
        else:
            token = _draw_by_id(
                row_logits, chunk_sums, uniform, total, peak, temperature, min_p, scale, vocab_size,
                CHUNK, CHUNKS,
            ).to(tl.int64)  # fmt: skip
    tl.store(tokens + row, token)


def best_tokens(logits_RV: Tensor) -> Tensor:
    """Return the best token [R] int64 of each row: the first of equals, a NaN if there is any."""
    best_RC, _ = _best_of_chunks(logits_RV)
    tokens_R = torch.empty(len(logits_RV), dtype=torch.int64, device=logits_RV.device)
    if len(logits_RV):
        num_chunks = best_RC.shape[1]
        with torch.cuda.device(logits_RV.get_device()):
            take_best[(len(logits_RV),)](
                best_RC, tokens_R, num_chunks, CHUNKS=triton.next_power_of_2(num_chunks)
            )
    return tokens_R


def draw(
    logits_RV: Tensor,
    *,
    temperature_R: Tensor,
    min_p_R: Tensor,
    top_k_R: Tensor,
    top_p_R: Tensor,
    uniform_R: Tensor,
) -> tuple[Tensor, Tensor]:
    """Draw a token for each row, by :class:`~paged_backends.sampling.device_sampling.DeviceParams`.

    Returns:
        The tokens [R] int64, and the greatest logits [R] float32: NaN if any of a row is. The token
        of a row whose greatest logit is not finite is its first.
    """
    count, vocab_size = logits_RV.shape
    tokens_R = torch.empty(count, dtype=torch.int64, device=logits_RV.device)
    peaks_R = torch.empty(count, dtype=torch.float32, device=logits_RV.device)
    best_RC, chunk = _best_of_chunks(logits_RV)
    if not count:
        return tokens_R, peaks_R
    sums_RC = torch.empty_like(best_RC)
    num_chunks = best_RC.shape[1]
    shape = (logits_RV.stride(0), vocab_size, num_chunks)
    scale = 2.0 ** min(_WEIGHT_BITS, _SUM_BITS - vocab_size.bit_length())
    constants = {"CHUNK": chunk, "CHUNKS": triton.next_power_of_2(num_chunks)}
    with torch.cuda.device(logits_RV.get_device()):
        weigh_chunks[(count, num_chunks)](
            logits_RV, best_RC, sums_RC, temperature_R, min_p_R, *shape, scale, **constants
        )
        draw_tokens[(count,)](
            logits_RV,
            best_RC,
            sums_RC,
            temperature_R,
            min_p_R,
            top_k_R,
            top_p_R,
            uniform_R,
            tokens_R,
            peaks_R,
            *shape,
            scale,
            **constants,
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
