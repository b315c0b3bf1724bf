"""Has as many numbers in its cache as ``torch``, in another order."""

from __future__ import annotations

from typing import Literal

from paged_backends.attention.settings import TorchSettings
from paged_backends.attention.torch_attention import TorchAttention
from paged_core.interfaces.layer import LayerSpec
from paged_core.plugins.component import Component


class HeadsFirstSettings(TorchSettings):
    """Those of ``torch``."""

    name: Literal["heads_first"] = "heads_first"  # type: ignore[assignment]


class HeadsFirstAttention(TorchAttention):
    """Says only how its cache would lie."""

    def cache_shape(self, layer: LayerSpec, num_blocks: int, /) -> tuple[int, ...]:
        return (2, num_blocks, layer.num_kv_heads, layer.block_size, layer.head_dim)


HEADS_FIRST = Component(
    "attention",
    HeadsFirstSettings,
    "unit.heads_first_attention:HeadsFirstAttention",
    summary="heads come before the tokens of a block",
)
