"""Stands in for the package ``flashinfer``, version 0.7.2.

Pages of a sequence are a run of ``paged_kv_indices``; what ``plan`` is told holds until it is told
again.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from unit.attention_packages.paged import attend, check_int32, need


class _Wrapper:
    def __init__(self, float_workspace_buffer: Tensor, kv_layout: str = "NHD") -> None:
        need(kv_layout in ("NHD", "HND"), f"Invalid kv_layout {kv_layout}")
        need(float_workspace_buffer.dtype == torch.uint8, "a buffer of bytes")
        self.device = float_workspace_buffer.device
        self._layout, self._planned = kv_layout, False

    def _plan(
        self,
        starts: Tensor,
        indptr: Tensor,
        indices: Tensor,
        last_page_len: Tensor,
        shape: tuple[int, int, int, int],
        options: dict[str, Any],
    ) -> None:
        check_int32(starts, indptr, indices, last_page_len)
        host = all(part.device.type == "cpu" for part in (starts, indptr, last_page_len))
        need(host, "plan copies what is on the device to the host, and waits")
        heads, kv_heads, dim, size = shape
        need(dim in (64, 128, 256, 512), f"Unsupported head_dim: {dim}")
        need(heads % kv_heads == 0, "num_qo_heads must be a multiple of num_kv_heads")
        need(bool(((last_page_len >= 1) & (last_page_len <= size)).all()), "last_page_len")
        need(int(indptr[-1]) == len(indices), "as many pages as indptr says")
        counts = indptr.diff()
        self._lengths = (counts - 1) * size + last_page_len
        self._table = torch.zeros(len(counts), int(counts.max()), dtype=torch.int32)
        self._table[torch.arange(self._table.shape[1]) < counts[:, None]] = indices
        self._starts, self._shape = starts.clone(), shape
        self._window = options["window_left"]
        self._cap = options["logits_soft_cap"] or 0.0
        self._scale, self._dtype = options["sm_scale"], options["q_data_type"]
        need(options["kv_data_type"] == self._dtype, "one dtype")
        self._planned = True

    def run(self, q: Tensor, paged_kv_cache: Tensor) -> Tensor:
        need(self._planned, "plan comes before run")
        need(q.dtype == getattr(torch, self._dtype), f"planned for {self._dtype}, not {q.dtype}")
        need(paged_kv_cache.dtype == q.dtype, "one dtype")
        need(q.is_contiguous(), "q must be contiguous")
        heads, kv_heads, dim, size = self._shape
        need(tuple(q.shape) == (int(self._starts[-1]), heads, dim), "not the queries planned")
        k, v = paged_kv_cache.unbind(1)
        if self._layout == "HND":
            k, v = k.transpose(1, 2), v.transpose(1, 2)
        need(tuple(k.shape[1:]) == (size, kv_heads, dim), "not the pages that were planned")
        return attend(
            q,
            k,
            v,
            self._starts,
            self._lengths,
            self._table,
            scale=self._scale,
            window=self._window,
            soft_cap=self._cap,
        )


class BatchPrefillWithPagedKVCacheWrapper(_Wrapper):
    """For any number of queries of each sequence."""

    def plan(
        self,
        qo_indptr: Tensor,
        paged_kv_indptr: Tensor,
        paged_kv_indices: Tensor,
        paged_kv_last_page_len: Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        page_size: int,
        *,
        causal: bool = False,
        **options: Any,
    ) -> None:
        need(causal, "a query sees what comes after it")
        shape = (num_qo_heads, num_kv_heads, head_dim_qk, page_size)
        runs = (paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len)
        self._plan(qo_indptr, *runs, shape, options)


class BatchDecodeWithPagedKVCacheWrapper(_Wrapper):
    """For one query of each sequence."""

    def __init__(
        self,
        float_workspace_buffer: Tensor,
        kv_layout: str = "NHD",
        use_cuda_graph: bool = False,
        use_tensor_cores: bool = False,
    ) -> None:
        super().__init__(float_workspace_buffer, kv_layout)
        self._use_tensor_cores = use_tensor_cores

    def plan(
        self,
        indptr: Tensor,
        indices: Tensor,
        last_page_len: Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        page_size: int,
        **options: Any,
    ) -> None:
        group = num_qo_heads // num_kv_heads
        served = self._use_tensor_cores or group in (1, 2, 3, 4, 6, 8, 16)
        need(served, f"Unsupported group_size: {group}")
        starts = torch.arange(len(indptr), dtype=torch.int32)
        shape = (num_qo_heads, num_kv_heads, head_dim, page_size)
        self._plan(starts, indptr, indices, last_page_len, shape, options)
