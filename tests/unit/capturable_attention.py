"""A backend whose decode can be captured: every row gathers as many keys as any replay may have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from paged_backends.attention.settings import TorchSettings
from paged_backends.attention.torch_attention import PagedLayer, TorchAttention
from paged_core.engine.contexts import AttentionContext
from paged_core.interfaces.attention import AttentionBatch, LayerAttention
from paged_core.interfaces.layer import LayerSpec
from paged_core.plugins.component import Component
from paged_core.settings.schema import EngineSettings


class CapturableSettings(TorchSettings):
    """Those of ``torch``."""

    name: Literal["capturable"] = "capturable"  # type: ignore[assignment]


CAPTURABLE = Component(
    "attention",
    CapturableSettings,
    "unit.capturable_attention:CapturableAttention",
    summary="plain PyTorch that can be captured",
)


@dataclass(frozen=True, slots=True)
class CapturePlan:
    """Static tensors, and the most keys that a row may have."""

    batch: AttentionBatch
    max_seq_len: int


class CapturableLayer:
    """Attention of one layer over a captured batch, or any other batch as ``torch`` does it."""

    def __init__(self, layer: LayerSpec, cache: Tensor) -> None:
        self._layer = layer
        self._eager = PagedLayer(layer, cache)
        self._keys, self._values = (part.flatten(0, 1) for part in cache)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, plan: Any, /) -> Tensor:
        if not isinstance(plan, CapturePlan):
            return self._eager.forward(query, key, value, plan)
        layer, batch = self._layer, plan.batch
        slots, lengths = batch.slot_mapping, batch.seq_lens.long()
        self._write(slots, key, value)
        places = torch.arange(plan.max_seq_len, device=slots.device)
        held = torch.minimum(places, (lengths - 1).clamp_min(0)[:, None])
        blocks = batch.block_tables.gather(1, held // layer.block_size).long()
        at = blocks * layer.block_size + held % layer.block_size
        group = layer.num_heads // layer.num_kv_heads
        keys, values = (
            cache[at].repeat_interleave(group, dim=2) for cache in (self._keys, self._values)
        )
        scores = torch.einsum("shd,slhd->shl", query * layer.scale, keys)
        hidden = places >= lengths[:, None]
        scores = scores.masked_fill(hidden[:, None], -1e30)
        return torch.einsum("shl,slhd->shd", scores.softmax(-1), values)

    def _write(self, slots: Tensor, key: Tensor, value: Tensor) -> None:
        """Write rows that have a slot; the others repeat the first of these, or, if there is none,
        write slot 0 as it is."""
        first = (slots >= 0).int().argmax()[None]
        any_slot = slots.index_select(0, first)
        at = torch.where(slots >= 0, slots, any_slot).clamp_min(0)
        for cache, rows in ((self._keys, key), (self._values, value)):
            kept = torch.where((slots >= 0)[:, None, None], rows, rows.index_select(0, first))
            cache.index_copy_(0, at, torch.where(any_slot[:, None, None] >= 0, kept, cache[at]))


class CapturableAttention(TorchAttention):
    """Counts what it plans."""

    def __init__(
        self, options: TorchSettings | None = None, context: AttentionContext | None = None
    ) -> None:
        super().__init__(
            options or CapturableSettings(), context or AttentionContext(settings=EngineSettings())
        )
        self.captured: list[int] = []
        self.num_updates = 0

    def check(self, layer: LayerSpec, /) -> str | None:
        if layer.sliding_window or layer.soft_cap or layer.alibi_slopes:
            return "it has no windows, caps or slopes"
        return super().check(layer)

    def bind(self, layer: LayerSpec, cache: Tensor, /) -> LayerAttention:
        return CapturableLayer(layer, cache)

    def plan_capture(self, batch: AttentionBatch, /) -> CapturePlan:
        self.captured.append(len(batch.seq_lens))
        return CapturePlan(batch, batch.max_seq_len)

    def update_capture(self, plan: CapturePlan, batch: AttentionBatch, /) -> None:
        assert len(batch.seq_lens_host) == len(plan.batch.seq_lens)
        self.num_updates += 1
