"""A backend whose decode can be captured: every row gathers as many keys as any replay may have."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from paged_backends.attention.cache import SlotWrites
from paged_backends.attention.settings import TorchSettings
from paged_backends.attention.torch_attention import PagedLayer, TorchAttention
from paged_core.engine.contexts import AttentionContext
from paged_core.interfaces.attention import AttentionBatch, LayerAttention
from paged_core.interfaces.layer import LayerSpec
from paged_core.plugins.component import Component
from paged_core.settings.schema import EngineSettings


class CapturableSettings(TorchSettings):
    """Options of ``torch``."""

    name: Literal["capturable"] = "capturable"  # type: ignore[assignment]


CAPTURABLE = Component(
    "attention",
    CapturableSettings,
    "unit.capturable_attention:CapturableAttention",
    summary="plain PyTorch that can be captured",
)


class CapturePlan:
    """Static tensors, the most keys that a row may have, and where the new ones go."""

    def __init__(self, batch: AttentionBatch) -> None:
        self.batch, self.max_seq_len = batch, batch.max_seq_len
        self.writes = SlotWrites(batch.slot_mapping, may_be_empty=True)


class CapturableLayer:
    """Attention of one layer over a captured batch, or any other batch as ``torch`` does it."""

    def __init__(self, layer: LayerSpec, cache: Tensor) -> None:
        self._layer = layer
        self._eager = PagedLayer(layer, cache)
        self._keys, self._values = (part.flatten(0, 1) for part in cache)
        self._head_by_head = cache.permute(1, 0, 3, 2, 4)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, plan: Any, /) -> Tensor:
        if not isinstance(plan, CapturePlan):
            return self._eager.forward(query, key, value, plan)
        layer, batch = self._layer, plan.batch
        lengths = batch.seq_lens.long()
        plan.writes.write(self._head_by_head, key, value)
        places = torch.arange(plan.max_seq_len, device=lengths.device)
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
        if layer.sliding_window or layer.soft_cap or layer.alibi_slopes or layer.sinks:
            return "it has no windows, caps, slopes or sinks"
        return super().check(layer)

    def bind(self, layer: LayerSpec, cache: Tensor, /) -> LayerAttention:
        return CapturableLayer(layer, cache)

    def plan_capture(self, batch: AttentionBatch, /) -> CapturePlan:
        self.captured.append(len(batch.seq_lens))
        return CapturePlan(batch)

    def update_capture(self, plan: CapturePlan, batch: AttentionBatch, /) -> None:
        assert len(batch.seq_lens_host) == len(plan.batch.seq_lens)
        plan.writes.refresh()
        self.num_updates += 1
