"""Layers and plans of component ``triton``: which kernels are launched, and how.

Imports Triton, which reads ``TRITON_INTERPRET`` then.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import nan
from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from paged_backends.attention.layers import slopes_of
from paged_backends.attention.step import BlockBounds, KernelBatch, contiguous_rows
from paged_backends.kernels.key_splits import MAX_SPLITS, choose_splits
from paged_backends.kernels.triton.attention import attend_splits, attend_tiles, merge_splits
from paged_backends.kernels.triton.availability import is_interpreted
from paged_backends.kernels.triton.cache import prepare_and_write, write_tokens
from paged_backends.kernels.triton.layer_ops import NUMBERS
from paged_backends.kernels.triton.tuning import (
    INTERPRETED,
    Capability,
    TileSizes,
    tuning,
)
from paged_core.interfaces.attention import AttentionBatch, HeadPreparation
from paged_core.interfaces.layer import LayerSpec


class Plan(KernelBatch):
    """Plan of one step, or of a captured one, whose tensors may then get other numbers.

    Args:
        batch: whose tensors the kernels read.
        tile_tokens: sequences with as many new tokens, or more, are computed in tiles.
        has_decodes: whether any sequence may have one new token that is computed in splits.
        bounds: to be checked before kernels get the tensors; ``None``: the numbers are not known.
    """

    def __init__(
        self,
        batch: AttentionBatch,
        *,
        tile_tokens: int,
        has_decodes: bool,
        bounds: BlockBounds | None,
    ) -> None:
        super().__init__(batch)
        self.tile_tokens = tile_tokens
        self.has_tiles = batch.max_query_len >= tile_tokens
        self.has_decodes = has_decodes
        self.bounds = bounds
        self._scratch: dict[tuple[int, int, int], tuple[Tensor, Tensor]] = {}

    def scratch(self, num_heads: int, num_splits: int, head_dim: int) -> tuple[Tensor, Tensor]:
        """Return memory for the results of splits and their states, reused layer by layer:
        [S, heads, splits, head_dim] and [2, S, heads, splits], float32."""
        key = (num_heads, num_splits, head_dim)
        if key not in self._scratch:
            shape = (self.num_sequences, num_heads, num_splits)
            parts, states = (
                torch.empty(size, dtype=torch.float32, device=self.lengths.device)
                for size in ((*shape, head_dim), (2, *shape))
            )
            if parts.device.type == "cpu":  # reading what was not written shows
                parts.fill_(nan)
                states.fill_(nan)
            self._scratch[key] = parts, states
        return self._scratch[key]


_NATIVE_FLOAT8 = (8, 9)
_MERGED_AT_ONCE = 16
_SLACK = 8
"""In tiles; weights are at most ``2^8``, which all types hold."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """Device that launches are made for."""

    capability: Capability
    num_processors: int
    """Streaming multiprocessors."""

    @classmethod
    def of(cls, device: torch.device) -> Gpu | None:
        """Return what ``device`` is; ``None`` if it is no GPU."""
        if device.type != "cuda":
            return None
        properties = torch.cuda.get_device_properties(device)
        return cls(torch.cuda.get_device_capability(device), properties.multi_processor_count)


class TritonLayer:
    """Attention of one layer over its cache.

    Args:
        gpu: for which tiles and splits are chosen; ``None``: for the interpreter.
    """

    def __init__(self, layer: LayerSpec, cache: Tensor, gpu: Gpu | None) -> None:
        self._cache = cache
        self._layer = layer
        self._dtype: torch.dtype = getattr(torch, layer.dtype)
        slopes = slopes_of(layer, cache.device)
        self._slopes = cache if slopes is None else slopes  # any address does if there are none
        dim = max(16, 1 << (layer.head_dim - 1).bit_length())
        float8 = layer.kv_cache_dtype != "auto"
        self._sizes = INTERPRETED
        self._slots = 8  # of the interpreter, that a sequence be split
        if gpu is not None:
            self._sizes = sizes = tuning(dim, self._dtype.itemsize, gpu.capability, float8=float8)
            resident = sizes.decode.resident(dim, cache.itemsize, gpu.capability)
            self._slots = gpu.num_processors * resident
        group, scale = layer.num_heads // layer.num_kv_heads, layer.scale
        self._decode_rows = max(self._sizes.decode.rows, 1 << (group - 1).bit_length())
        self._cache_constants: dict[str, Any] = {
            "KV_HEADS": layer.num_kv_heads,
            "BLOCK_SIZE": layer.block_size,
            "HEAD_SIZE": cache[0, 0, 0].numel(),
            "HEAD_DIM": layer.head_dim,
            "DIM": dim,
            "FLOAT8": float8,
        }
        self._constants: dict[str, Any] = {
            **self._cache_constants,
            "GROUP": group,
            "NATIVE": float8 and gpu is not None and gpu.capability >= _NATIVE_FLOAT8,
            "HAS_WINDOW": layer.sliding_window is not None,
            "HAS_CAP": layer.soft_cap is not None,
            "HAS_SLOPES": layer.alibi_slopes is not None,
            "SIGN": (scale > 0) - (scale < 0),
            "DOT": tl.float32 if is_interpreted() else getattr(tl, layer.dtype),
        }
        self._window = layer.sliding_window or 0
        self._numbers = (abs(scale) or 1.0, layer.soft_cap or 1.0, self._window)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, plan: Plan, /) -> Tensor:
        """See :class:`~paged_core.interfaces.attention.LayerAttention`."""
        return self._forward(query, key, value, plan, None)

    def prepare_and_forward(
        self, query: Tensor, key: Tensor, value: Tensor, plan: Plan, preparation: HeadPreparation, /
    ) -> Tensor:
        """See :class:`~paged_core.interfaces.attention.SupportsHeadPreparation`."""
        return self._forward(query, key, value, plan, preparation)

    def _forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        plan: Plan,
        preparation: HeadPreparation | None,
    ) -> Tensor:
        if plan.bounds is not None:
            plan.bounds.check(len(self._cache), self._layer.block_size)
        wanted, dtype = query.dtype, self._dtype
        query, key, value = (contiguous_rows(tensor, dtype) for tensor in (query, key, value))
        out = torch.empty(query.shape, dtype=dtype, device=query.device)
        if preparation is None:
            self.write(key, value, plan)
        else:
            self._prepare_and_write(query, key, value, plan, preparation)
        if plan.has_tiles:
            self._attend_in_tiles(query, out, plan)
        if plan.has_decodes:
            self._attend_in_splits(query, out, plan)
        return out if wanted is dtype else out.to(wanted)

    def write(self, key: Tensor, value: Tensor, plan: Plan, /) -> None:
        """Write keys and values of the layer's dtype, the last dimension contiguous."""
        tokens = self._sizes.write_tokens
        write_tokens[(-(-plan.num_tokens // tokens), self._layer.num_kv_heads)](
            key,
            value,
            self._cache,
            plan.slots,
            *key.stride()[:2],
            *value.stride()[:2],
            plan.num_tokens,
            **self._cache_constants,
            TOKENS=tokens,
        )

    def _prepare_and_write(
        self, query: Tensor, key: Tensor, value: Tensor, plan: Plan, preparation: HeadPreparation
    ) -> None:
        layer, cache = self._layer, self._cache
        half = self._cache_constants["DIM"] // 2
        rows = max(1, NUMBERS // (2 * half))
        query_programs = -(-plan.num_tokens * layer.num_heads // rows)
        key_programs = -(-plan.num_tokens * layer.num_kv_heads // rows)
        given = (
            preparation.query_norm,
            preparation.key_norm,
            preparation.cos,
            preparation.sin,
        )
        prepare_and_write[(query_programs + 2 * key_programs,)](
            query,
            key,
            value,
            cache,
            plan.slots,
            *(query if tensor is None else tensor for tensor in given),
            *query.stride()[:2],
            *key.stride()[:2],
            *value.stride()[:2],
            plan.num_tokens,
            query_programs,
            key_programs,
            preparation.eps,
            preparation.offset,
            HEADS=layer.num_heads,
            KV_HEADS=layer.num_kv_heads,
            BLOCK_SIZE=layer.block_size,
            HEAD_SIZE=self._cache_constants["HEAD_SIZE"],
            HALF_DIM=layer.head_dim // 2,
            HAS_QUERY_NORM=preparation.query_norm is not None,
            HAS_KEY_NORM=preparation.key_norm is not None,
            HAS_ROTARY=preparation.cos is not None,
            ROWS=rows,
            HALF=half,
            FLOAT8=self._cache_constants["FLOAT8"],
        )

    def _attend_in_tiles(self, query: Tensor, out: Tensor, plan: Plan) -> None:
        sizes, sequences = self._sizes.prefill, plan.num_sequences
        tiles = plan.num_tokens * self._constants["GROUP"] // sizes.rows + sequences
        attend_tiles[(tiles, self._layer.num_kv_heads)](
            query,
            self._cache,
            out,
            plan.starts,
            plan.lengths,
            plan.tables,
            self._slopes,
            *query.stride()[:2],
            plan.tables.shape[1],
            sequences,
            plan.tile_tokens,
            *self._numbers,
            **self._constants,
            SLACK=_SLACK,
            ROWS=sizes.rows,
            **_launch(sizes),
        )

    def _attend_in_splits(self, query: Tensor, out: Tensor, plan: Plan) -> None:
        layer, sizes, sequences = self._layer, self._sizes.decode, plan.num_sequences
        longest = plan.max_seq_len
        if layer.sliding_window is not None:
            longest = min(longest, layer.sliding_window + sizes.keys - 1)
        least_tiles = self._sizes.least_tiles
        splits = choose_splits(
            sequences * layer.num_kv_heads,
            longest,
            least_tiles * sizes.keys,
            self._slots,
            unit=sizes.keys,
        )
        parts = states = out  # not written if there is one split
        if splits > 1:
            parts, states = plan.scratch(layer.num_heads, splits, layer.head_dim)
        attend_splits[(sequences, layer.num_kv_heads, splits)](
            query,
            self._cache,
            out,
            parts,
            states,
            plan.starts,
            plan.lengths,
            plan.tables,
            self._slopes,
            *query.stride()[:2],
            plan.tables.shape[1],
            splits,
            *self._numbers,
            **self._constants,
            ROWS=self._decode_rows,
            LEAST_TILES=least_tiles,
            HAS_SPLITS=splits > 1,
            **_launch(sizes),
        )
        if splits == 1:
            return
        constants = self._constants
        merge_splits[(sequences, layer.num_heads)](
            out,
            parts,
            states,
            plan.starts,
            plan.lengths,
            splits,
            self._window,
            HEADS=layer.num_heads,
            HEAD_DIM=layer.head_dim,
            DIM=constants["DIM"],
            SPLITS=MAX_SPLITS,  # whatever their number, so that it is compiled once
            CHUNK=_MERGED_AT_ONCE,
            KEYS=sizes.keys,
            LEAST_TILES=least_tiles,
            HAS_WINDOW=constants["HAS_WINDOW"],
        )


def _launch(sizes: TileSizes) -> dict[str, Any]:
    return {
        "KEYS": sizes.keys,
        "num_warps": sizes.num_warps,
        "num_stages": sizes.num_stages,
        # what is rounded once says so: loops with and without masks give a key the same bits
        "enable_fp_fusion": False,
    }
