"""Random sampling that never waits for the device, by the rules of ``random_sampling``.

Shapes: R rows, V vocabulary.
"""

# ruff: noqa: N803, N806 - the shape of a tensor is the upper-case end of its name
from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceParams:
    """Sampling parameters of R rows, on the device."""

    temperature: Tensor
    """[R] float32; 0: greedy."""
    min_p: Tensor
    """[R] float32."""
    top_k: Tensor
    """[R] int32; 0: all."""
    top_p: Tensor
    """[R] float32."""
    uniform: Tensor
    """[R], in [0, 1): selects the token."""


def device_sample(logits_RV: Tensor, params: DeviceParams, /) -> Tensor:
    """Return a token for each row of ``logits_RV`` float32 [R] int64, without waiting."""
    vocab_size = logits_RV.shape[1]
    values_RV, ids_RV = logits_RV.sort(dim=-1, descending=True, stable=True)
    temperature = params.temperature.double()[:, None]
    greedy = temperature == 0
    weights = ((values_RV.double() - values_RV[:, :1]) / temperature.masked_fill(greedy, 1.0)).exp()
    places = torch.arange(vocab_size, device=logits_RV.device)
    top_k = params.top_k[:, None].masked_fill(params.top_k[:, None] == 0, vocab_size)
    weights = weights.masked_fill((places >= top_k) | (weights < params.min_p[:, None]), 0.0)
    sums = weights.cumsum(-1)
    reach = params.top_p.double()[:, None] * sums[:, -1:]
    kept = weights.masked_fill((sums - weights >= reach) & (places > 0), 0.0)
    filtered = (params.top_k > 0) | (params.top_p < 1)
    in_order = torch.zeros_like(kept).scatter_(1, ids_RV, kept)
    ranked_first = torch.where(filtered[:, None], kept, in_order)
    totals = ranked_first.cumsum(-1)
    target = params.uniform.double()[:, None] * totals[:, -1:]
    last = totals[:, -1:].nextafter(torch.zeros_like(target))
    found = torch.searchsorted(totals, torch.minimum(target, last), right=True)
    found = found.clamp_max(vocab_size - 1)
    tokens = torch.where(filtered[:, None], ids_RV.gather(1, found), found)
    return torch.where(greedy, ids_RV[:, :1], tokens)[:, 0]
