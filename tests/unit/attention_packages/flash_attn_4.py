"""Stands in for ``flash_attn.cute`` of flash-attn-4, version 4.0.0b36."""

from __future__ import annotations

from torch import Tensor

from unit.attention_packages.paged import attend, check_cache, check_lengths, need, spoil

TILE = 128
"""Keys of a tile; pages of this size are loaded whole."""


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    qv: None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    min_seqlen_k: int | None = None,
    seqused_q: None = None,
    seqused_k: Tensor | None = None,
    gather_kv_indices: None = None,
    page_table: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int | None, int | None] = (None, None),
    learnable_sink: None = None,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    return_lse: bool = False,
) -> tuple[Tensor, None]:
    """Returns the sums of the softmax too, or ``None`` in their place."""
    assert cu_seqlens_q is not None
    assert seqused_k is not None
    assert page_table is not None
    assert cu_seqlens_k is None, "page_table is not supported with cu_seqlens_k"
    check_cache(q, k, v, page_table, cu_seqlens_q, seqused_k, head_dim=256)
    for tensor in (q, k, v):
        steps = tensor.stride()[:-1]
        need(all(step % 8 == 0 for step in steps), "strides must be multiples of 16 bytes")
    need(len(cu_seqlens_q) - 1 == len(seqused_k) == len(page_table), "one row for each sequence")
    need(int(cu_seqlens_q.diff().max()) <= (max_seqlen_q or 0), "max_seqlen_q is too small")
    need(int(cu_seqlens_q[-1]) == q.shape[0], "q must have shape (total_q, ...)")
    left, right = window_size
    need(causal or right == 0, "a query sees what comes after it")
    check_lengths(seqused_k, max_seqlen_k or 0, page_table, k.shape[1])
    out = attend(
        q,
        k,
        v,
        cu_seqlens_q,
        seqused_k,
        page_table,
        scale=softmax_scale,
        window=-1 if left is None else left,
        soft_cap=softcap,
    )
    if k.shape[1] == TILE:
        spoil(out, v, cu_seqlens_q, seqused_k, page_table)
    return out, None
