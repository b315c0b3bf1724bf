"""Stands in for ``flash_attn_interface`` of flash-attn 3, on Hopper."""

from __future__ import annotations

from torch import Tensor

from unit.attention_packages.paged import attend, check_cache, check_lengths, need, spoil

TILE = 128
"""Keys of a tile; pages that hold whole tiles are loaded whole."""


def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: None = None,
    v: None = None,
    qv: None = None,
    rotary_cos: None = None,
    rotary_sin: None = None,
    cache_seqlens: Tensor | None = None,
    cache_batch_idx: None = None,
    cache_leftpad: None = None,
    page_table: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k_new: None = None,
    max_seqlen_q: int | None = None,
    rotary_seqlens: None = None,
    q_descale: None = None,
    k_descale: None = None,
    v_descale: None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    scheduler_metadata: None = None,
    num_splits: int = 0,
    pack_gqa: bool | None = None,
    sm_margin: int = 0,
    return_softmax_lse: bool = False,
) -> Tensor:
    """Queries [T, H, D], as many of each sequence as ``cu_seqlens_q`` says."""
    assert cache_seqlens is not None
    assert page_table is not None
    assert cu_seqlens_q is not None
    check_cache(q, k_cache, v_cache, page_table, cu_seqlens_q, cache_seqlens, head_dim=256)
    size = k_cache.shape[1]
    need(max_seqlen_q is not None, "max_seqlen_q must be provided if cu_seqlens_q is provided")
    need(int(cu_seqlens_q.diff().max()) <= (max_seqlen_q or 0), "max_seqlen_q is too small")
    need(len(cu_seqlens_q) - 1 == len(cache_seqlens) == len(page_table), "one row for each")
    need(int(cu_seqlens_q[-1]) == q.shape[0], "q must have shape (total_q, ...)")
    need(causal, "a query sees what comes after it")
    check_lengths(cache_seqlens, page_table.shape[1] * size, page_table, size)
    out = attend(
        q,
        k_cache,
        v_cache,
        cu_seqlens_q,
        cache_seqlens,
        page_table,
        scale=softmax_scale,
        window=window_size[0],
        soft_cap=softcap,
    )
    if size % TILE == 0:
        spoil(out, v_cache, cu_seqlens_q, cache_seqlens, page_table)
    return out
