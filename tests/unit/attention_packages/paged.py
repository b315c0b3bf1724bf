"""What the stand-ins for packages have in common: refusals, and attention over pages.

A stand-in has the names, the defaults, the refusals and the results of its package, as its source
and documentation say, and of its arguments those that inference over a paged cache needs. It runs
on a CPU.
An adapter that is right over it calls its package rightly, which says nothing of its kernels.

Shapes: T tokens of S sequences, W pages in a row of the table; H query heads, K key heads of D
numbers; B pages of P tokens.
"""

# ruff: noqa: N803, N806 - the shape of an array is the upper-case end of its name
from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from paged_backends.attention.torch_attention import PagedLayer, Plan
from paged_core.interfaces.layer import LayerSpec
from paged_testing.attention_scene import attention_batch


class Refused(RuntimeError):
    """The package would refuse this call."""


def need(holds: bool, message: str) -> None:
    """Refuse the call, unless ``holds``."""
    if not holds:
        raise Refused(message)


def check_int32(*tensors: Tensor) -> None:
    """Refuse lengths and tables that are not contiguous int32."""
    for tensor in tensors:
        need(tensor.dtype == torch.int32, f"must have dtype torch.int32, not {tensor.dtype}")
        need(tensor.stride(-1) == 1, "must have a contiguous last dimension")


def attend_packed(
    query_THD: Tensor,
    keys_BPKD: Tensor,
    values_BPKD: Tensor,
    starts_S: Tensor,
    lengths_S: Tensor,
    table_SW: Tensor,
    *,
    max_query: int,
    max_keys: int,
    causal: bool,
    **options: Any,
) -> Tensor:
    """Return what :func:`attend` does with ``options``, or refuse what all of the packages refuse.

    Args:
        max_query: queries of a sequence, at most; ``max_keys`` likewise.
        causal: whether a query sees only what comes before it.
    """
    _check_cache(query_THD, keys_BPKD, values_BPKD, table_SW, starts_S, lengths_S)
    need(len(starts_S) - 1 == len(lengths_S) == len(table_SW), "one row for each sequence")
    need(int(starts_S.diff().max()) <= max_query, "max_seqlen_q is too small")
    need(int(starts_S[-1]) == len(query_THD), "q must have shape (total_q, ...)")
    need(causal, "a query sees what comes after it")
    longest = int(lengths_S.max())
    need(longest <= max_keys, f"a sequence has {longest} tokens, not {max_keys}")
    need(longest <= table_SW.shape[1] * keys_BPKD.shape[1], "the table is too narrow")
    return attend(query_THD, keys_BPKD, values_BPKD, starts_S, lengths_S, table_SW, **options)


def _check_cache(
    query: Tensor, keys: Tensor, values: Tensor, table: Tensor, *lengths: Tensor
) -> None:
    dtypes = (torch.float16, torch.bfloat16)
    need(query.dtype in dtypes, "only support fp16 and bf16 data type")
    need(query.dtype == keys.dtype == values.dtype, "query and key must have the same dtype")
    need(len({t.device for t in (query, keys, values, table, *lengths)}) == 1, "one device")
    need(all(t.stride(-1) == 1 for t in (query, keys, values)), "contiguous last dimension")
    check_int32(table, *lengths)
    heads, dim = query.shape[-2:]
    need(keys.dim() == 4 and keys.shape == values.shape, "[pages, page, heads, head_dim]")
    need(dim == keys.shape[3], "one head_dim")
    need(dim % 8 == 0 and dim <= 256, "head_dim: multiples of 8 up to 256")
    need(heads % keys.shape[2] == 0, "key heads must divide query heads")
    need(table.dim() == 2, "a row of the table for each sequence")


def attend(
    query_THD: Tensor,
    keys_BPKD: Tensor,
    values_BPKD: Tensor,
    starts_S: Tensor,
    lengths_S: Tensor,
    table_SW: Tensor,
    *,
    scale: float | None,
    window: int = -1,
    soft_cap: float = 0.0,
    slopes_H: Tensor | None = None,
) -> Tensor:
    """Return causal attention [T, H, D]; the last query of a sequence is aligned to its last key.

    A sequence without keys gets zeros.

    Args:
        starts_S: [S + 1], running sums of the numbers of queries.
        window: keys that a query sees before its own; -1: all.
    """
    _, size, kv_heads, dim = keys_BPKD.shape
    counts = starts_S.diff()
    kept = lengths_S.nonzero().flatten()
    rows = torch.repeat_interleave(lengths_S > 0, counts).nonzero().flatten()
    out_THD = torch.zeros_like(query_THD, memory_format=torch.contiguous_format)
    if not len(rows):
        return out_THD
    chunks = [
        (length - count, count)
        for length, count in zip(lengths_S[kept].tolist(), counts[kept].tolist(), strict=True)
    ]
    pages, table_SW = _used(table_SW[kept], lengths_S[kept], size)
    batch = attention_batch(table_SW.numpy(), chunks, size)
    layer = LayerSpec(
        num_heads=query_THD.shape[1],
        num_kv_heads=kv_heads,
        head_dim=dim,
        scale=dim**-0.5 if scale is None else scale,
        dtype=str(query_THD.dtype).removeprefix("torch."),
        device="cpu",
        block_size=size,
        sliding_window=None if window < 0 else window + 1,
        soft_cap=soft_cap or None,
        alibi_slopes=None if slopes_H is None else tuple(slopes_H.tolist()),
    )
    cache = torch.stack((keys_BPKD[pages], values_BPKD[pages]))
    # what is there is written again
    keys_TKD, values_TKD = (part.flatten(0, 1)[batch.slot_mapping] for part in cache)
    out_THD[rows] = PagedLayer(layer, cache).forward(
        query_THD[rows], keys_TKD, values_TKD, Plan(batch, one_by_one=False)
    )
    return out_THD


def _used(table_SW: Tensor, lengths_S: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Return the pages that hold tokens, and the table that counts these alone.

    A cache of gigabytes, of which a test uses a few pages, is not copied.
    """
    holds_tokens = torch.arange(table_SW.shape[1]) * size < lengths_S[:, None]
    pages = table_SW[holds_tokens].unique()
    places = torch.searchsorted(pages, table_SW).clamp(max=len(pages) - 1)
    return pages, places.to(table_SW.dtype)


def spoil(
    out_THD: Tensor, values_BPKD: Tensor, starts_S: Tensor, lengths_S: Tensor, table_SW: Tensor
) -> Tensor:
    """Return ``out_THD``, NaN where the last page of a sequence holds anything that is not finite
    behind its last token: what pages that are loaded whole lead to."""
    size = values_BPKD.shape[1]
    for sequence, length in enumerate(lengths_S.tolist()):
        if length and not values_BPKD[table_SW[sequence, (length - 1) // size]].isfinite().all():
            out_THD[starts_S[sequence] : starts_S[sequence + 1]] = np.nan
    return out_THD
