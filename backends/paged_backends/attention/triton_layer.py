"""Layers and plans of component ``triton``: which kernels are launched, and how.

Imports Triton, which reads ``TRITON_INTERPRET`` then.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import triton.language as tl
from torch import Tensor

from paged_backends.attention.layers import by_head
from paged_backends.attention.step import BlockBounds, KernelBatch, Scratch, contiguous_rows
from paged_backends.kernels.cuda.driver import resident_blocks
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
        bounds: to be checked before kernels get the tensors; ``None``: the numbers are not known,
            since the step is captured.
        scratch: of the component.
    """

    def __init__(
        self,
        batch: AttentionBatch,
        *,
        tile_tokens: int,
        has_decodes: bool,
        bounds: BlockBounds | None,
        scratch: Scratch,
    ) -> None:
        super().__init__(batch)
        self.tile_tokens = tile_tokens
        self.has_tiles = batch.max_query_len >= tile_tokens
        self.has_decodes = has_decodes
        self.bounds = bounds
        self._scratch = scratch
        self._splits: dict[SplitRule, Splits] = {}
        self._taken: dict[tuple[int, int, int], tuple[Tensor, Tensor]] = {}

    def splits(self, rule: SplitRule, least: Tensor) -> Splits:
        """Return how layers of one kind split keys; made once.

        Args:
            least: what the rule has of it, on the device.
        """
        if rule not in self._splits:
            count = rule.count(self.num_sequences, self.max_seq_len)
            if self.bounds is None:  # a captured step gets others
                least = least.clone()
            self._splits[rule] = Splits(count, least, rule.least_tiles)
        return self._splits[rule]

    def update(self, batch: AttentionBatch) -> None:
        """Split the keys anew, in all kinds of layers, for the sequences of ``batch``."""
        sequences = int(np.count_nonzero(batch.seq_lens_host))
        for rule, splits in self._splits.items():
            wanted = min(splits.count, rule.count(sequences, batch.max_seq_len))
            tiles = max(rule.least_tiles, -(-rule.seen(batch.max_seq_len) // (wanted * rule.keys)))
            if tiles != splits.tiles:
                splits.least.fill_(tiles)
                splits.tiles = tiles

    def scratch(self, num_heads: int, num_splits: int, head_dim: int) -> tuple[Tensor, Tensor]:
        """Return memory for the results of splits and their states, float32, used by layer after
        layer: [S, heads, splits, head_dim] and [2, S, heads, splits]."""
        key = (num_heads, num_splits, head_dim)
        if key not in self._taken:  # and kept, for graphs have its address
            shape = (self.num_sequences, num_heads, num_splits)
            count = math.prod(shape)
            first = -(-count * head_dim // 4) * 4  # of the states, at a multiple of 16 bytes
            held = self._scratch.take(first + 2 * count, self.lengths.device)
            parts, states = held[: count * head_dim], held[first:]
            self._taken[key] = parts.view(*shape, head_dim), states.view(2, *shape)
        return self._taken[key]


@dataclass(frozen=True, slots=True)
class SplitRule:
    """Splits of the keys of sequences that decode, for layers of one kind."""

    kv_heads: int
    window: int | None
    slots: int
    """Programs that the GPU runs at once."""
    keys: int
    """Keys of a tile."""
    least_tiles: int
    """Tiles of a split at least."""

    def seen(self, longest: int) -> int:
        """Return the keys, in tiles that it sees a part of, of a sequence of ``longest`` tokens."""
        return longest if self.window is None else min(longest, self.window + self.keys - 1)

    def count(self, sequences: int, longest: int) -> int:
        """Return the splits of the longest of so many sequences."""
        return choose_splits(
            sequences * self.kv_heads,
            self.seen(longest),
            self.least_tiles * self.keys,
            self.slots,
            unit=self.keys,
        )


@dataclass(slots=True)
class Splits:
    """Splits of keys in one step, for layers of one kind."""

    count: int
    """Number for the longest sequence."""
    least: Tensor
    """Tiles of a split at least [1] int32."""
    tiles: int
    """The number that it has."""


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

    def resident(self, compile_kernel: Callable[[], Any], /) -> int:
        """Return how many programs of a kernel a streaming multiprocessor runs at once, as the
        driver says of what was compiled."""
        kernel = compile_kernel()
        kernel._init_handles()
        warps, shared = kernel.metadata.num_warps, kernel.metadata.shared
        return resident_blocks(kernel.function, 32 * warps, shared)


class TritonLayer:
    """Attention of one layer over its cache.

    Args:
        gpu: for which tiles and splits are chosen; ``None``: for the interpreter.
    """

    def __init__(self, layer: LayerSpec, cache: Tensor, gpu: Gpu | None) -> None:
        self._cache = cache
        self._layer = layer
        self._dtype: torch.dtype = getattr(torch, layer.dtype)
        slopes, sinks = (by_head(part, cache.device) for part in (layer.alibi_slopes, layer.sinks))
        self._slopes = cache if slopes is None else slopes  # any address does if there are none
        self._sinks = cache if sinks is None else sinks
        dim = max(16, 1 << (layer.head_dim - 1).bit_length())
        float8 = layer.kv_cache_dtype != "auto"
        self._sizes = INTERPRETED
        self._gpu, self._rule = gpu, None if gpu is not None else self._rule_of(8)
        if gpu is not None:
            self._sizes = tuning(dim, self._dtype.itemsize, gpu.capability, float8=float8)
        self._least = torch.full(
            (1,), self._sizes.least_tiles, dtype=torch.int32, device=cache.device
        )
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
            "HAS_SINKS": layer.sinks is not None,
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
            self._sinks,
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

    def _rule_of(self, slots: int) -> SplitRule:
        layer, sizes = self._layer, self._sizes
        window, keys = layer.sliding_window, sizes.decode.keys
        return SplitRule(layer.num_kv_heads, window, slots, keys, sizes.least_tiles)

    def _attend_in_splits(self, query: Tensor, out: Tensor, plan: Plan) -> None:
        layer, sizes, sequences = self._layer, self._sizes.decode, plan.num_sequences
        named = {**self._constants, "ROWS": self._decode_rows, **_launch(sizes)}

        def arguments(parts: Tensor, states: Tensor, least: Tensor, splits: int) -> list[Any]:
            return [
                *(query, self._cache, out, parts, states),
                *(plan.starts, plan.lengths, plan.tables, self._slopes, self._sinks, least),
                *query.stride()[:2],
                *(plan.tables.shape[1], splits, *self._numbers),
            ]

        if self._rule is None:
            assert self._gpu is not None
            scores = torch.empty(1, dtype=torch.float32, device=query.device)
            given = arguments(scores, scores, self._least, 2)
            resident = self._gpu.resident(
                lambda: attend_splits.warmup(*given, HAS_SPLITS=True, grid=(1,), **named)
            )
            self._rule = self._rule_of(self._gpu.num_processors * resident)
        chosen = plan.splits(self._rule, self._least)
        splits, least = chosen.count, chosen.least
        parts = states = out  # not written if there is one split
        if splits > 1:
            parts, states = plan.scratch(layer.num_heads, splits, layer.head_dim)
        attend_splits[(sequences, layer.num_kv_heads, splits)](
            *arguments(parts, states, least, splits), HAS_SPLITS=splits > 1, **named
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
            least,
            self._sinks,
            splits,
            self._window,
            HEADS=layer.num_heads,
            HEAD_DIM=layer.head_dim,
            DIM=constants["DIM"],
            SPLITS=MAX_SPLITS,  # whatever their number, so that it is compiled once
            CHUNK=_MERGED_AT_ONCE,
            KEYS=sizes.keys,
            HAS_WINDOW=constants["HAS_WINDOW"],
            HAS_SINKS=constants["HAS_SINKS"],
        )


def _launch(sizes: TileSizes) -> dict[str, Any]:
    return {
        "KEYS": sizes.keys,
        "num_warps": sizes.num_warps,
        "num_stages": sizes.num_stages,
        # what is rounded once says so: loops with and without masks give a key the same bits
        "enable_fp_fusion": False,
    }
