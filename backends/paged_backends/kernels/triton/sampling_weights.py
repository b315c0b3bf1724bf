"""How tokens are ranked and weighed: both as integers, whose order and sums are exact."""

# ruff: noqa: N803 - constants of a kernel are upper-case, and so is the shape of an array
from __future__ import annotations

import triton
import triton.language as tl

from paged_backends.sampling.row import GREEDY_BELOW

_NAN_KEY = tl.constexpr(0x7FFFFFFF)
_GREEDY_BELOW = tl.constexpr(GREEDY_BELOW)
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
def is_random(temperature, peak):
    """Whether a token is drawn at random: greedy rows and those not finite take the best."""
    return (temperature >= _GREEDY_BELOW) & (tl.abs(peak) < float("inf"))


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
