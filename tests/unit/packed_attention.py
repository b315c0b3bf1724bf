"""A backend that owns its cache's layout: a block is a row of bytes, and keys are transposed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from paged_backends.attention.settings import TorchSettings
from paged_backends.attention.torch_attention import PagedLayer, Plan, TorchAttention
from paged_core.engine.contexts import AttentionContext
from paged_core.interfaces.layer import LayerSpec
from paged_core.plugins.component import Component

_PADDING = 24
"""Bytes after the values of a block."""


class PackedSettings(TorchSettings):
    """Options of ``torch``."""

    name: Literal["packed"] = "packed"  # type: ignore[assignment]


PACKED = Component(
    "attention",
    PackedSettings,
    "unit.packed_attention:PackedAttention",
    summary="attention over blocks that are rows of bytes",
)


class PackedLayer:
    """Unpacks the whole cache, attends, and packs it again."""

    def __init__(self, layer: LayerSpec, cache: Tensor) -> None:
        self.layer, self.cache = layer, cache
        self.half = layer.block_size * layer.bytes_per_token // 2

    def forward(self, query: Tensor, key: Tensor, value: Tensor, plan: Plan, /) -> Tensor:
        layer, dtype = self.layer, getattr(torch, self.layer.dtype)
        heads, dim, size = layer.num_kv_heads, layer.head_dim, layer.block_size
        packed = self.cache[:, : 2 * self.half]
        keys, values = (part.contiguous().view(dtype) for part in packed.split(self.half, dim=1))
        plain = torch.stack(
            [
                keys.view(-1, heads, dim, size).permute(0, 3, 1, 2),
                values.view(-1, heads, size, dim).transpose(1, 2),
            ]
        )
        out = PagedLayer(layer, plain).forward(query, key, value, plan)
        parts = (plain[0].permute(0, 2, 3, 1), plain[1].transpose(1, 2))
        packed.copy_(torch.cat([part.flatten(1).view(torch.uint8) for part in parts], dim=1))
        return out


class PackedAttention(TorchAttention):
    """Counts the blocks that it copies, by whether source and target are the same cache."""

    def __init__(self, options: PackedSettings, context: AttentionContext) -> None:
        super().__init__(options, context)
        self.num_copied = {"within": 0, "across": 0}

    def check(self, layer: LayerSpec, /) -> str | None:
        if layer.kv_cache_dtype != "auto":
            return f"its rows have no room for scales of {layer.kv_cache_dtype}"
        return super().check(layer)

    def cache_shape(self, layer: LayerSpec, num_blocks: int, /) -> tuple[int, ...]:
        raise AssertionError("the layout of the cache is its backend's")

    def block_bytes(self, layer: LayerSpec, /) -> int:
        return layer.block_size * layer.bytes_per_token + _PADDING

    def allocate_cache(self, layer: LayerSpec, num_blocks: int, device: str, /) -> Tensor:
        return torch.zeros(num_blocks, self.block_bytes(layer), dtype=torch.uint8, device=device)

    def copy_blocks(
        self, source: Tensor, origins: Sequence[int], target: Tensor, destinations: Sequence[int], /
    ) -> None:
        target[list(destinations)] = source[list(origins)].to(target.device)
        self.num_copied["within" if source is target else "across"] += len(origins)

    def bind(self, layer: LayerSpec, cache: Any, /) -> PackedLayer:
        return PackedLayer(layer, cache)
