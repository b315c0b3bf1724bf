"""Stands in for the package ``flash_attn``, version 2.8.3."""

from __future__ import annotations

import torch
from torch import Tensor

from unit.attention_packages.paged import attend_packed, check_int32, need


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    *,
    block_table: Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
) -> Tensor:
    """With a block table, lengths are known from ``cu_seqlens_k`` only."""
    check_int32(cu_seqlens_k)
    _check(k, alibi_slopes)
    return attend_packed(
        *(q, k, v, cu_seqlens_q, cu_seqlens_k.diff(), block_table),
        max_query=max_seqlen_q,
        max_keys=max_seqlen_k,
        causal=causal or max_seqlen_q == 1,
        scale=softmax_scale,
        window=window_size[0],
        soft_cap=softcap,
        slopes_H=alibi_slopes,
    )


def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    *,
    cache_seqlens: Tensor,
    block_table: Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
) -> Tensor:
    """Queries [S, Q, H, D]: equally many for each sequence."""
    sequences, count = q.shape[:2]
    _check(k_cache, alibi_slopes)
    starts = torch.arange(sequences + 1, dtype=torch.int32) * count
    out = attend_packed(
        *(q.flatten(0, 1), k_cache, v_cache, starts, cache_seqlens, block_table),
        max_query=count,
        max_keys=block_table.shape[1] * k_cache.shape[1],
        causal=causal or count == 1,
        scale=softmax_scale,
        window=window_size[0],
        soft_cap=softcap,
        slopes_H=alibi_slopes,
    )
    return out.unflatten(0, (sequences, count))


def _check(keys: Tensor, slopes: Tensor | None) -> None:
    need(keys.shape[1] % 256 == 0, "Paged KV cache block size must be divisible by 256")
    if slopes is not None:
        need(slopes.dtype == torch.float32, "ALiBi slopes must have dtype fp32")
