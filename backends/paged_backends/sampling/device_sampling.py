"""Sampling on a GPU: no step of it waits for the device, or has a shape that depends on numbers.

The definitions are those of :mod:`paged_backends.sampling.random_sampling`, and so are the tokens,
except where rounding decides: at the boundary between two tokens, or at the end of a nucleus.

Shapes: R rows, V vocabulary.
"""

# ruff: noqa: N815 - the shape of an array is the upper-case end of its name
from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec

import torch
from torch import Tensor

from paged_backends.sampling.row import GREEDY_BELOW, MAX_TEMPERATURE


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceParams:
    """Parameters of each row: tensors [R] on the device of the logits."""

    temperature: Tensor
    """float32; below ``GREEDY_BELOW``, or 0, the best token is taken."""
    min_p: Tensor
    """float32; 0: off."""
    top_k: Tensor
    """int32; 0: off."""
    top_p: Tensor
    """float32 or float64; 1: off."""
    uniform: Tensor
    """float32 or float64 in [0, 1): see :func:`~paged_backends.sampling.row.uniform`."""


@dataclass(frozen=True, slots=True)
class DeviceTokens:
    """Sampled tokens, on the device."""

    tokens_R: Tensor
    """int64; of a row that cannot be sampled from, any token of the vocabulary."""
    peaks_R: Tensor
    """float32: the greatest logit of each row, NaN if any is NaN. Where it is not finite, the row
    cannot be sampled from."""


def device_sample(logits: Tensor, params: DeviceParams, /) -> DeviceTokens:
    """Sample a token for each row of ``logits`` [R, V] of any precision, which are only read.

    They are not copied in float32: a kernel widens what it has loaded.
    """
    if logits.is_cuda and find_spec("triton") is not None:
        return triton_sample(logits, params)
    return torch_sample(logits, params)


def triton_sample(logits: Tensor, params: DeviceParams) -> DeviceTokens:
    """Sample with our kernels in Triton, which sort nothing."""
    from paged_backends.kernels.triton.sampling import draw

    tokens, peaks = draw(
        logits,
        temperature_R=params.temperature,
        min_p_R=params.min_p,
        top_k_R=params.top_k,
        top_p_R=params.top_p,
        uniform_R=params.uniform,
        greedy_below=GREEDY_BELOW,
    )
    return DeviceTokens(tokens, peaks)


def torch_sample(logits: Tensor, params: DeviceParams) -> DeviceTokens:
    """Sample with plain PyTorch, which sorts every row."""
    vocab_size = logits.shape[1]
    best = logits.argmax(-1)
    peaks = logits.gather(1, best[:, None])[:, 0].float()
    ranked = torch.sort(logits, dim=-1, descending=True, stable=True)
    by_id = _first_above(_weights(logits, peaks, params).cumsum(-1), params.uniform)
    sums = _weights(ranked.values, peaks, params).cumsum(-1)
    off = (params.top_k <= 0) | (params.top_k >= vocab_size)
    last_k = torch.where(off, vocab_size, params.top_k).long()[:, None] - 1
    reach = params.top_p.double()[:, None] * sums.gather(1, last_k)
    last_p = (sums < reach).sum(-1, keepdim=True)
    nucleus = sums.gather(1, torch.minimum(last_k, last_p))
    place = _first_above(sums.clamp_max(nucleus), params.uniform)
    best_first = ranked.indices.gather(1, place)
    sampled = torch.where(off & (params.top_p >= 1), by_id[:, 0], best_first[:, 0])
    greedy = (params.temperature < GREEDY_BELOW) | ~peaks.isfinite()
    return DeviceTokens(torch.where(greedy, best, sampled), peaks)


def _weights(logits: Tensor, peaks: Tensor, params: DeviceParams) -> Tensor:
    """Return unnormalised probabilities [R, V] float64: 1 for the best token, 0 if filtered."""
    temperature = params.temperature.double().clamp(GREEDY_BELOW, MAX_TEMPERATURE)[:, None]
    weights = ((logits.double() - peaks.double()[:, None]) / temperature).exp()
    return weights.masked_fill(weights < params.min_p.double()[:, None], 0.0)


def _first_above(sums: Tensor, share: Tensor) -> Tensor:
    """Return where cumulative sums first exceed a share of the last one, [R, 1]."""
    total = sums[:, -1:]
    target = torch.minimum(share.double()[:, None] * total, total.nextafter(total.new_zeros(())))
    return torch.searchsorted(sums, target, right=True).clamp_max(sums.shape[1] - 1)
