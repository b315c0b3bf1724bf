"""Ranks and weights of tokens, both integers whose order and sums are exact, and selection by rank.

Tokens are ranked by falling logit, and equals by rising id. Selection finds without a sort the
token at which tokens, best first, are enough: a sum of weights, or a number of tokens. Bisection
over the keys finds the greatest from which upwards they are, as it finds the k-th largest number.
That a nucleus can be found so too is from FlashInfer's sampling (Ye et al., 2025,
https://flashinfer.ai/2025/03/10/sampling.html), which draws again what it rejects, where this
inverts the cumulative distribution.
"""

# ruff: noqa: N803 - the shape of an array is the upper-case end of its name
from __future__ import annotations

import triton
import triton.language as tl

_NAN_KEY = tl.constexpr(0x7FFFFFFF)
_MAX_TEMPERATURE = tl.constexpr(1e30)


@triton.jit
def keys_of(logits):
    """Integers in the order of the logits; NaN is the greatest."""
    bits = logits.to(tl.int32, bitcast=True)
    keys = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    keys = tl.where(logits == 0, 0, keys)  # both zeros
    return tl.where(logits != logits, _NAN_KEY, keys)


@triton.jit
def logits_of(keys):
    """The inverse of :func:`keys_of`."""
    keys = keys.to(tl.int32)
    return tl.where(keys < 0, keys ^ 0x7FFFFFFF, keys).to(tl.float32, bitcast=True)


@triton.jit
def weights_of(logits, peak, temperature, min_p, scale):
    """Weights as integers; ``scale`` is that of the peak, and 0 of what ``min_p`` filters."""
    weights = tl.exp((logits - peak) * (1.0 / temperature))
    return (tl.where(weights < min_p, 0.0, weights) * scale).to(tl.int64)


@triton.jit
def best_of_row(best, row, num_chunks, CHUNKS: tl.constexpr):
    """Return the best token of a row, and its key, from those of its chunks."""
    chunks = tl.arange(0, CHUNKS)
    ranked = tl.load(best + row * num_chunks + chunks, chunks < num_chunks, -0x7FFFFFFFFFFFFFFF)
    ranked = tl.max(ranked, 0)
    return (ranked & 0x7FFFFFFF) ^ 0x7FFFFFFF, ranked >> 32


@triton.jit
def is_random(temperature, peak, GREEDY_BELOW: tl.constexpr):
    """Whether a token is drawn at random: greedy rows and those not finite take the best."""
    return (temperature >= GREEDY_BELOW) & (tl.abs(peak) < float("inf"))


@triton.jit
def bounded(temperature):
    """The temperature, less than float32 ends: all tokens are equally likely before that."""
    return tl.minimum(temperature, _MAX_TEMPERATURE)


@triton.jit
def is_filtered_by_rank(top_k, top_p, vocab_size):
    """Whether ``top_k`` or ``top_p`` filters, so that tokens are drawn best first."""
    return ((top_k > 0) & (top_k < vocab_size)) | (top_p < 1)


@triton.jit
def reach_of(top_p, total):
    """The sum at which a nucleus ends."""
    return tl.ceil(top_p.to(tl.float64) * total.to(tl.float64)).to(tl.int64)


@triton.jit
def share_of(uniform, total):
    """The sum that a draw exceeds."""
    return tl.minimum((uniform.to(tl.float64) * total.to(tl.float64)).to(tl.int64), total - 1)


_LIGHTEST = tl.constexpr(-30.0)
"""exp(-30) is less than the least weight."""
_STEPS_BY_VALUE = tl.constexpr(16)


@triton.jit
def _from_key(values, size, middle, peak, temperature, min_p, scale, CHUNK: tl.constexpr):
    """Look at the tokens from a key upwards: the sum of their weights, how many they are, and the
    least of their keys; and find the greatest key below."""
    sums = tl.zeros([CHUNK], tl.int64)
    counts = tl.zeros([CHUNK], tl.int32)
    least = tl.full([CHUNK], 0x7FFFFFFF, tl.int32)
    below = tl.full([CHUNK], -0x7FFFFFFF, tl.int32)
    for first in range(0, size, CHUNK):
        places = first + tl.arange(0, CHUNK)
        logits = tl.load(values + places, places < size, float("-inf")).to(tl.float32)
        keys = keys_of(logits)
        above = keys >= middle
        sums += tl.where(above, weights_of(logits, peak, temperature, min_p, scale), 0)
        counts += above.to(tl.int32)
        least = tl.minimum(least, tl.where(above, keys, 0x7FFFFFFF))
        below = tl.maximum(below, tl.where(above, -0x7FFFFFFF, keys))
    return tl.sum(sums, 0), tl.sum(counts, 0), tl.min(least, 0), tl.max(below, 0)


@triton.jit
def select(
    values, size, target, rank, peak_key, peak, temperature, min_p, scale, CHUNK: tl.constexpr
):
    """Find the first token at which the sum exceeds ``target``, or whose rank is ``rank``, from 1;
    ``size`` logits, which hold every token of a rank up to it, are at ``values``.

    Returns its key, its place among the tokens of that key, from 1, and the sum up to it.
    """
    # enough from `low` upwards, not enough from `high` upwards
    low = keys_of(peak + temperature * _LIGHTEST).to(tl.int64)
    high = peak_key + 1
    sum_above = tl.full([], 0, tl.int64)
    count_above = tl.full([], 0, tl.int32)
    step = tl.full([], 0, tl.int32)
    while high - low > 1:
        middle = low + (high - low) // 2
        if step < _STEPS_BY_VALUE:  # most of the keys are those of numbers near zero
            middle = keys_of(logits_of(low) * 0.5 + logits_of(high - 1) * 0.5).to(tl.int64)
            middle = tl.minimum(tl.maximum(middle, low + 1), high - 1)
        weight, count, least, below = _from_key(
            values, size, middle, peak, temperature, min_p, scale, CHUNK
        )
        if (weight > target) | (count >= rank):
            low = least.to(tl.int64)
        else:
            high = below.to(tl.int64) + 1
            sum_above = weight
            count_above = count
        step += 1
    weight = weights_of(logits_of(low), peak, temperature, min_p, scale)
    by_sum = (target - sum_above) // tl.maximum(weight, 1) + 1
    nth = tl.minimum(by_sum, (rank - count_above).to(tl.int64))
    return low, nth, sum_above + nth * weight


@triton.jit
def place_of(values, size, key, nth, CHUNK: tl.constexpr):
    """Return the place of the nth token of a key, from 1."""
    place = tl.full([], 0, tl.int32)
    passed = tl.full([], 0, tl.int64)
    first = tl.full([], 0, tl.int32)
    while (passed < nth) & (first < size):
        places = first + tl.arange(0, CHUNK)
        inside = places < size
        logits = tl.load(values + places, inside, float("-inf")).to(tl.float32)
        equal = ((keys_of(logits) == key) & inside).to(tl.int64)
        place = first + tl.sum((tl.cumsum(equal, 0) < nth - passed).to(tl.int32), 0)
        passed += tl.sum(equal, 0)
        first += CHUNK
    return tl.minimum(place, size - 1)
