"""Stands in for ``flash_attn_interface`` of flash-attn 3, on Hopper."""

from __future__ import annotations

from torch import Tensor

from unit.attention_packages.paged import attend_packed, spoil

TILE = 128
"""Keys of a tile; pages that hold whole tiles are loaded whole."""


def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    *,
    cache_seqlens: Tensor,
    page_table: Tensor,
    cu_seqlens_q: Tensor,
    max_seqlen_q: int,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    num_splits: int = 0,
) -> Tensor:
    """Queries [T, H, D], as many of each sequence as ``cu_seqlens_q`` says."""
    size = k_cache.shape[1]
    out = attend_packed(
        *(q, k_cache, v_cache, cu_seqlens_q, cache_seqlens, page_table),
        max_query=max_seqlen_q,
        max_keys=page_table.shape[1] * size,
        causal=causal,
        scale=softmax_scale,
        window=window_size[0],
        soft_cap=softcap,
    )
    if size % TILE == 0:
        spoil(out, v_cache, cu_seqlens_q, cache_seqlens, page_table)
    return out
