"""Stands in for the package ``flash_attn``, version 2.8.3."""

from __future__ import annotations

import torch
from torch import Tensor

from unit.attention_packages.paged import attend, check_cache, check_int32, check_lengths, need


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Tensor | None = None,
) -> Tensor:
    """With a block table, lengths are known from ``cu_seqlens_k`` only."""
    assert block_table is not None, "paged caches only"
    check_cache(q, k, v, block_table, cu_seqlens_q, cu_seqlens_k, head_dim=256)
    lengths = cu_seqlens_k.diff()
    _check(k, cu_seqlens_q, lengths, block_table, alibi_slopes)
    check_lengths(lengths, max_seqlen_k, block_table, k.shape[1])
    need(int(cu_seqlens_q.diff().max()) <= max_seqlen_q, "max_seqlen_q is too small")
    need(int(cu_seqlens_q[-1]) == q.shape[0], "q must have shape (total_q, ...)")
    need(causal or max_seqlen_q == 1, "a query sees what comes after it")
    return attend(
        q,
        k,
        v,
        cu_seqlens_q,
        lengths,
        block_table,
        scale=softmax_scale,
        window=window_size[0],
        soft_cap=softcap,
        slopes_H=alibi_slopes,
    )


def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: None = None,
    v: None = None,
    rotary_cos: None = None,
    rotary_sin: None = None,
    cache_seqlens: Tensor | None = None,
    cache_batch_idx: None = None,
    cache_leftpad: None = None,
    block_table: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: Tensor | None = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
) -> Tensor:
    """Queries [S, Q, H, D]: equally many for each sequence."""
    assert block_table is not None
    assert cache_seqlens is not None
    check_cache(q, k_cache, v_cache, block_table, cache_seqlens, head_dim=256)
    sequences, count = q.shape[:2]
    starts = torch.arange(sequences + 1, dtype=torch.int32) * count
    _check(k_cache, starts, cache_seqlens, block_table, alibi_slopes)
    check_lengths(
        cache_seqlens, block_table.shape[1] * k_cache.shape[1], block_table, k_cache.shape[1]
    )
    need(causal or count == 1, "a query sees what comes after it")
    out = attend(
        q.flatten(0, 1),
        k_cache,
        v_cache,
        starts,
        cache_seqlens,
        block_table,
        scale=softmax_scale,
        window=window_size[0],
        soft_cap=softcap,
        slopes_H=alibi_slopes,
    )
    return out.unflatten(0, (sequences, count))


def _check(
    keys: Tensor, starts: Tensor, lengths: Tensor, table: Tensor, slopes: Tensor | None
) -> None:
    need(keys.shape[1] % 256 == 0, "Paged KV cache block size must be divisible by 256")
    check_int32(lengths)
    need(len(starts) - 1 == len(lengths) == len(table), "one row for each sequence")
    if slopes is not None:
        need(slopes.dtype == torch.float32, "ALiBi slopes must have dtype fp32")
