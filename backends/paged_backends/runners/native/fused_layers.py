"""All layers of a decoder in one call of our own kernels, where they cover it.

Shapes: T tokens, E hidden size.
"""

# ruff: noqa: N803 - the shape of an array is the upper-case end of its name
from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from paged_backends.attention.cpu_attention import PagedLayer
from paged_backends.attention.step_attention import StepAttention
from paged_backends.kernels.cpu.kernels import Kernels
from paged_backends.runners.native.config import DecoderConfig, Rope
from paged_backends.runners.native.decoder import Attend, Layer
from paged_backends.runners.native.fused_decoder import FusedDecoder, FusedLayer, FusedNorm
from paged_backends.runners.native.kernel_parts import (
    KernelHeads,
    KernelLayerNorm,
    KernelNorm,
    KernelProduct,
)
from paged_backends.runners.native.parts import Map
from paged_backends.runners.native.rope import Turns
from paged_core.interfaces.attention import LayerAttention


class FusedLayers:
    """Runs the same layers as they would run one by one, over attention ``cpu`` only."""

    def __init__(self, decoder: FusedDecoder, ropes: Sequence[Rope]) -> None:
        self._decoder = decoder
        self._ropes = ropes
        self._known: Sequence[LayerAttention] | None = None
        self._attention: list[PagedLayer] = []

    def serves(self, attend: Attend) -> bool:
        """Whether this step's attention can be called from the kernels."""
        if not isinstance(attend, StepAttention):
            return False
        if attend.layers is not self._known:
            self._known = attend.layers
            self._attention = [layer for layer in attend.layers if isinstance(layer, PagedLayer)]
        return len(self._attention) == len(attend.layers)

    def run(
        self, hidden_TE: Tensor, turns: Mapping[Rope | None, Turns | None], attend: StepAttention
    ) -> None:
        """Turn what goes into the first layer into what the last returns, in place."""
        tables = [turn for rope in self._ropes if (turn := turns[rope]) is not None]
        self._decoder.forward(
            hidden_TE,
            tables[0].rows_T if tables else None,
            [table.cos_TH for table in tables],
            [table.sin_TH for table in tables],
            self._attention,
            attend.plan,
        )


def fuse(config: DecoderConfig, layers: Sequence[Layer], kernels: Kernels) -> FusedLayers | None:
    """Return the layers as one, or ``None`` where the kernels lack something of them."""
    ropes = list(dict.fromkeys(layer.rope for layer in config.layers if layer.rope is not None))
    if not config.norm_first or not config.norm_has_weights or config.activation == "gelu":
        return None
    try:
        decoder = FusedDecoder(
            kernels,
            [_fused(layer, ropes) for layer in layers],
            activation=config.activation,
            eps=config.norm_eps,
            gated=config.gated,
            norm=config.norm,
            norm_offset=config.norm_weight_offset,
        )
    except ValueError:  # a shape that the kernels do not know
        return None
    return FusedLayers(decoder, ropes)


def _fused(layer: Layer, ropes: Sequence[Rope]) -> FusedLayer:
    attention, mlp = layer.attention, layer.mlp
    products = (attention.query_key_value, attention.output, mlp.up, mlp.down)
    query_key_value, output, up, down = (
        product.packed for product in products if isinstance(product, KernelProduct)
    )
    heads, rope = attention.heads, attention.config.rope
    assert isinstance(heads, KernelHeads)
    return FusedLayer(
        attention_norm=_norm(layer.attention_norm),
        query_key_value=query_key_value,
        query_norm=heads.query_norm,
        key_norm=heads.key_norm,
        rope=None if rope is None else ropes.index(rope),
        output=output,
        attention_output_norm=layer.attention_output_norm and _norm(layer.attention_output_norm),
        mlp_norm=_norm(layer.mlp_norm),
        up=up,
        down=down,
        mlp_output_norm=layer.mlp_output_norm and _norm(layer.mlp_output_norm),
    )


def _norm(norm: Map) -> FusedNorm:
    assert isinstance(norm, KernelNorm | KernelLayerNorm)
    return FusedNorm(norm.weight, norm.bias)
