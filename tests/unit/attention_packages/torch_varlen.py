"""Stands in for ``torch.nn.attention.varlen`` of PyTorch 2.13, which has no kernels for CPUs."""

from __future__ import annotations

from torch import Tensor

from unit.attention_packages.paged import attend_packed, check_int32, need


def varlen_attn(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor,
    max_q: int,
    max_k: int,
    *,
    seqused_k: Tensor,
    block_table: Tensor,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    enable_gqa: bool = False,
    num_splits: int | None = None,
) -> Tensor:
    """Over the flash-attn 2 that PyTorch contains."""
    same = query.shape[1] == key.shape[2]
    need(enable_gqa or same, "Expect query and key/value to have the same number of heads")
    need(key.shape[1] % 256 == 0, "Paged KV cache block size must be divisible by 256")
    check_int32(cu_seq_k)
    need(len(cu_seq_q) == len(cu_seq_k), "one row for each sequence")
    return attend_packed(
        *(query, key, value, cu_seq_q, seqused_k, block_table),
        max_query=max_q,
        max_keys=max_k,
        causal=window_size[1] == 0 or max_q == 1,
        scale=scale,
        window=window_size[0],
    )
