"""Selection by rank, without a sort: the token at which tokens, best first, are enough.

Tokens are ranked by falling logit, and equals by rising id. What is enough is a sum of weights, or
a number of tokens; bisection over the keys finds the greatest from which upwards they are, as it
finds the k-th largest number. That a nucleus can be found so too is from FlashInfer's sampling (Ye
et al., 2025, https://flashinfer.ai/2025/03/10/sampling.html), which draws again what it rejects,
where this inverts the cumulative distribution.
"""

# ruff: noqa: N803 - constants of a kernel are upper-case, and so is the shape of an array
from __future__ import annotations

import triton
import triton.language as tl

from paged_backends.kernels.triton.sampling_weights import keys_of, logits_of, weights_of

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
