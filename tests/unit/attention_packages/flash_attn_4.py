"""Stands in for ``flash_attn.cute`` of flash-attn-4, version 4.0.0b36."""

from __future__ import annotations

from torch import Tensor

from unit.attention_packages.paged import attend_packed, need, spoil

TILE = 128
"""Keys of a tile; pages of this size are loaded whole."""


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    cu_seqlens_q: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    seqused_k: Tensor,
    page_table: Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int | None, int | None] = (None, None),
    softcap: float = 0.0,
) -> tuple[Tensor, None]:
    """Returns the sums of the softmax too, or ``None`` in their place."""
    for tensor in (q, k, v):
        steps = tensor.stride()[:-1]
        need(all(step % 8 == 0 for step in steps), "strides must be multiples of 16 bytes")
    left, right = window_size
    out = attend_packed(
        *(q, k, v, cu_seqlens_q, seqused_k, page_table),
        max_query=max_seqlen_q,
        max_keys=max_seqlen_k,
        causal=causal or right == 0,
        scale=softmax_scale,
        window=-1 if left is None else left,
        soft_cap=softcap,
    )
    if k.shape[1] == TILE:
        spoil(out, v, cu_seqlens_q, seqused_k, page_table)
    return out, None
