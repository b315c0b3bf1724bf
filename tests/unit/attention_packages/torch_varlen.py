"""Stands in for ``torch.nn.attention.varlen`` of PyTorch 2.13, which has no kernels for CPUs."""

from __future__ import annotations

from torch import Tensor

from unit.attention_packages.paged import attend, check_cache, check_int32, check_lengths, need


def varlen_attn(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    *,
    return_aux: None = None,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    enable_gqa: bool = False,
    seqused_k: Tensor | None = None,
    block_table: Tensor | None = None,
    num_splits: int | None = None,
) -> Tensor:
    """Over the flash-attn 2 that PyTorch contains."""
    assert block_table is not None
    assert seqused_k is not None, "block_table requires seqused_k"
    assert cu_seq_k is not None
    same = query.shape[1] == key.shape[2]
    need(enable_gqa or same, "Expect query and key/value to have the same number of heads")
    check_cache(query, key, value, block_table, cu_seq_q, cu_seq_k, seqused_k, head_dim=256)
    check_int32(seqused_k)
    need(key.shape[1] % 256 == 0, "Paged KV cache block size must be divisible by 256")
    need(len(cu_seq_q) == len(cu_seq_k) == len(seqused_k) + 1 == len(block_table) + 1, "rows")
    need(int(cu_seq_q.diff().max()) <= max_q, "max_q is too small")
    need(int(cu_seq_q[-1]) == query.shape[0], "query must have shape (total_q, ...)")
    check_lengths(seqused_k, max_k, block_table, key.shape[1])
    need(window_size[1] == 0 or max_q == 1, "a query sees what comes after it")
    return attend(
        query,
        key,
        value,
        cu_seq_q,
        seqused_k,
        block_table,
        scale=scale,
        window=window_size[0],
    )
