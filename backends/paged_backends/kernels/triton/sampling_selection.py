"""Ranks and weights of tokens, both integers whose order and sums are exact, and selection by rank.

Tokens are ranked by falling logit, and equals by rising id. Selection finds without a sort the
token at which tokens, best first, are enough: a sum of weights, or a number of tokens. It has the
greatest key from which upwards they are; a pass over the tokens tries several keys at once. That a
nucleus can be found by its last key is from FlashInfer's sampling (Ye et al., 2025,
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
    """Return True if a token is drawn at random: greedy rows and those not finite take the best."""
    return (temperature >= GREEDY_BELOW) & (tl.abs(peak) < float("inf"))


@triton.jit
def bounded(temperature):
    """The temperature, less than float32 ends: all tokens are equally likely before that."""
    return tl.minimum(temperature, _MAX_TEMPERATURE)


@triton.jit
def is_filtered_by_rank(top_k, top_p, vocab_size):
    """Return True if ``top_k`` or ``top_p`` filters, so that tokens are drawn best first."""
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
_PASSES_BY_VALUE = tl.constexpr(2)
_NO_KEY = tl.constexpr(0x7FFFFFFF)


@triton.jit
def lightest_key(peak, temperature):
    """A key below which all weights are 0."""
    return keys_of(peak + temperature * _LIGHTEST).to(tl.int64)


@triton.jit
def from_key(values, size, key, peak, temperature, min_p, scale, TILE: tl.constexpr):
    """Look once at all tokens. Return how many there are from a key upwards, and the sum of their
    weights."""
    counts = tl.zeros([TILE], tl.int32)
    sums = tl.zeros([TILE], tl.int64)
    for first in range(0, size, TILE):
        places = first + tl.arange(0, TILE)
        logits = tl.load(values + places, places < size, float("-inf")).to(tl.float32)
        is_above = (keys_of(logits) >= key) & (places < size)
        counts += is_above.to(tl.int32)
        sums += tl.where(is_above, weights_of(logits, peak, temperature, min_p, scale), 0)
    return tl.sum(counts, 0), tl.sum(sums, 0)


@triton.jit
def _levels_between(low, high, is_by_value, LEVELS: tl.constexpr):
    """Return keys above ``low`` and below ``high``, at even distances: of their values, or their
    own. Most of the keys are those of numbers near zero, which few values are."""
    parts = tl.arange(0, LEVELS) + 1
    levels = low + (high - low) * parts // (LEVELS + 1)
    if is_by_value:
        share = parts * (1.0 / (LEVELS + 1))
        levels = keys_of(logits_of(low) * (1 - share) + logits_of(high - 1) * share).to(tl.int64)
    return tl.minimum(tl.maximum(levels, low + 1), high - 1).to(tl.int32)


@triton.jit
def _from_levels(
    values, size, levels, peak, temperature, min_p, scale,
    BY_COUNT: tl.constexpr, TILE: tl.constexpr, LEVELS: tl.constexpr,
):  # fmt: skip
    """Look once at all tokens. Return of those from each level upwards the sum of their weights, or
    how many they are, and the least of their keys; and the greatest key below the level."""
    sums = tl.zeros([TILE, LEVELS], tl.int64)
    least = tl.full([TILE, LEVELS], _NO_KEY, tl.int32)
    below = tl.full([TILE, LEVELS], -_NO_KEY, tl.int32)
    for first in range(0, size, TILE):
        places = first + tl.arange(0, TILE)
        logits = tl.load(values + places, places < size, float("-inf")).to(tl.float32)
        keys = keys_of(logits)[:, None]
        is_above = keys >= levels[None, :]
        if BY_COUNT:
            sums += is_above.to(tl.int64)
        else:
            weights = weights_of(logits, peak, temperature, min_p, scale)
            sums += tl.where(is_above, weights[:, None], 0)
        least = tl.minimum(least, tl.where(is_above, keys, _NO_KEY))
        below = tl.maximum(below, tl.where(is_above, -_NO_KEY, keys))
    return tl.sum(sums, 0), tl.min(least, 0), tl.max(below, 0)


@triton.jit
def select(
    values, size, target, low, peak_key, peak, temperature, min_p, scale,
    BY_COUNT: tl.constexpr, TILE: tl.constexpr, LEVELS: tl.constexpr,
):  # fmt: skip
    """Find the first token, best first, at which the sum of the weights exceeds ``target``, or
    their number does; ``size`` logits, which hold every token up to it, are at ``values``.

    A pass over the tokens tries so many levels. ``low`` is a key that is not above the token's.
    Returns its key, its place among the tokens of that key, from 1, and the sum up to it.
    """
    # enough from `low` upwards, not enough from `high` upwards
    high = peak_key + 1
    sum_above = tl.full([], 0, tl.int64)
    num_passes = tl.full([], 0, tl.int32)
    while high - low > 1:
        levels = _levels_between(low, high, num_passes < _PASSES_BY_VALUE, LEVELS)
        sums, least, below = _from_levels(
            values, size, levels, peak, temperature, min_p, scale, BY_COUNT, TILE, LEVELS
        )
        is_enough = sums > target
        low = tl.maximum(low, tl.max(tl.where(is_enough, least, -_NO_KEY), 0).to(tl.int64))
        high = tl.minimum(high, tl.min(tl.where(is_enough, _NO_KEY, below), 0).to(tl.int64) + 1)
        sum_above = tl.maximum(sum_above, tl.max(tl.where(is_enough, 0, sums), 0))
        num_passes += 1
    weight = tl.full([], 1, tl.int64)
    if not BY_COUNT:
        weight = weights_of(logits_of(low), peak, temperature, min_p, scale)
    nth = (target - sum_above) // tl.maximum(weight, 1) + 1
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
