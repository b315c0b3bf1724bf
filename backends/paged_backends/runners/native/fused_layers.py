"""All layers of a decoder in one call of the kernels, for the architectures that they cover.

Shapes: T tokens, E hidden size.
"""

# ruff: noqa: N803 - the shape of an array is the upper-case end of its name
from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from paged_backends.kernels.cpu.tensor_kernels import Kernels
from paged_backends.runners.native.config import DecoderConfig, Rope
from paged_backends.runners.native.decoder import Layer, Rotaries
from paged_backends.runners.native.fused_decoder import (
    FusedDecoder,
    FusedLayer,
    FusedNorm,
    SupportsKernelCall,
)
from paged_backends.runners.native.kernel_ops import (
    KernelHeadOp,
    KernelLayerNorm,
    KernelLinear,
    KernelNorm,
)
from paged_backends.runners.native.ops import Norm
from paged_core.interfaces.attention import LayerAttention
from paged_core.interfaces.runner import SupportsFusedLayers

if TYPE_CHECKING:
    from paged_core.interfaces.runner import Attend


class FusedLayers:
    """Computes what the layers compute one by one, if the kernels can call their attention."""

    def __init__(self, decoder: FusedDecoder, ropes: Sequence[Rope]) -> None:
        self._decoder = decoder
        self._ropes = ropes
        self._checked: Sequence[LayerAttention] | None = None
        self._attention: list[SupportsKernelCall] = []

    def run(self, hidden_TE: Tensor, rotaries: Rotaries, attend: Attend) -> bool:
        """See :class:`~paged_backends.runners.native.decoder.FusedStack`."""
        if not isinstance(attend, SupportsFusedLayers):
            return False
        if attend.layers is not self._checked:
            self._checked = attend.layers
            self._attention = [
                layer for layer in attend.layers if isinstance(layer, SupportsKernelCall)
            ]
        if len(self._attention) != len(attend.layers):
            return False
        tables = [rotary for rope in self._ropes if (rotary := rotaries[rope]) is not None]
        self._decoder.forward(
            hidden_TE,
            tables[0].rows_T if tables else None,
            [table.cos_TF for table in tables],
            [table.sin_TF for table in tables],
            self._attention,
            attend.plan,
        )
        return True


def fuse(config: DecoderConfig, layers: Sequence[Layer], kernels: Kernels) -> FusedLayers | None:
    """Return the layers as one call, or ``None`` if the kernels lack something that they need."""
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
    except ValueError:  # a shape that the kernels do not support
        return None
    return FusedLayers(decoder, ropes)


def _fused(layer: Layer, ropes: Sequence[Rope]) -> FusedLayer:
    attention, mlp = layer.attention, layer.mlp
    linears = (attention.query_key_value, attention.output, mlp.up, mlp.down)
    query_key_value, output, up, down = (
        linear.packed for linear in linears if isinstance(linear, KernelLinear)
    )
    heads, rope = attention.heads, attention.config.rope
    assert isinstance(heads, KernelHeadOp)
    return FusedLayer(
        attention_norm=_norm(layer.attention_norm),
        query_key_value=query_key_value,
        query_norm=heads.query_norm,
        key_norm=heads.key_norm,
        rope=None if rope is None else ropes.index(rope),
        output=output,
        attention_output_norm=_optional(layer.attention_output_norm),
        mlp_norm=_norm(layer.mlp_norm),
        up=up,
        down=down,
        mlp_output_norm=_optional(layer.mlp_output_norm),
    )


def _optional(norm: Norm | None) -> FusedNorm | None:
    return None if norm is None else _norm(norm)


def _norm(norm: Norm) -> FusedNorm:
    assert isinstance(norm, KernelNorm | KernelLayerNorm)
    return FusedNorm(norm.weight, norm.bias)
