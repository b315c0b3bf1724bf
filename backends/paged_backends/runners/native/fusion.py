"""Layers of kernel operations made into one call of the kernels, where their shapes allow it."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from paged_backends.kernels.cpu import bindings
from paged_backends.kernels.cpu.packed_weight import PANEL, PackedWeight
from paged_backends.kernels.cpu.tensor_kernels import Kernels
from paged_backends.runners.native.config import DecoderConfig
from paged_backends.runners.native.cpu_layers import (
    FusedLayers,
    KernelHeadOp,
    KernelLinear,
    KernelNorm,
)
from paged_backends.runners.native.decoder import Layer, Linear, Norm, SummedLinear
from paged_backends.runners.native.share import Share

_ACTIVATIONS = {"silu": 0, "gelu_tanh": 1, "relu": 2}
_NORMS = {"rms": 0, "layer": 1}
_TYPES = {torch.float32: 0, torch.bfloat16: 1}


def fuse(
    config: DecoderConfig, layers: Sequence[Layer], kernels: Kernels, share: Share
) -> FusedLayers | None:
    """Return the layers as one call, or ``None`` if the kernels lack something that they need.

    The kernels take layers of the same shapes and types, and widths of a gated feed-forward that
    are multiples of 32.

    Args:
        layers: made by :class:`~paged_backends.runners.native.cpu_layers.KernelOps`.
        share: what this rank holds: of ``output`` and ``down``, some of the columns.
    """
    if not config.norm_first or not config.norm_has_weights or config.activation == "gelu":
        return None
    kept = [_packed_weights(layer) for layer in layers]
    if config.gated and any(down.columns % PANEL for *_, down in kept):
        return None
    shapes = [_shape(layer, weights) for layer, weights in zip(layers, kept, strict=True)]
    if any(shape != shapes[0] for shape in shapes):
        return None
    kinds = [layer.rope for layer in config.layers]
    ropes = list(dict.fromkeys(rope for rope in kinds if rope is not None))
    first = layers[0].attention_norm
    assert isinstance(first, KernelNorm)
    structs = (bindings.DecoderLayer * len(layers))(
        *(
            _struct(layer, weights, -1 if rope is None else ropes.index(rope))
            for layer, weights, rope in zip(layers, kept, kinds, strict=True)
        )
    )
    call = bindings.DecoderCall(
        layers=ctypes.addressof(structs),
        num_layers=len(layers),
        width=config.hidden_size,
        activation=_ACTIVATIONS[config.activation],
        gated=config.gated,
        norm_kind=_NORMS[config.norm],
        epsilon=config.norm_eps,
        offset=config.norm_weight_offset,
        type=_TYPES[first.weight.dtype],
    )
    return FusedLayers(call, structs, kept, ropes, first.weight.dtype, kernels, share)


def _packed_weights(layer: Layer) -> list[PackedWeight]:
    attention, mlp = layer.attention, layer.mlp
    return [
        _packed(linear)
        for linear in (attention.query_key_value, attention.output, mlp.up, mlp.down)
    ]


def _packed(linear: Linear) -> PackedWeight:
    if isinstance(linear, SummedLinear):
        bias = linear.bias_O
        return replace(_packed(linear.product), bias=None if bias is None else bias.float())
    assert isinstance(linear, KernelLinear)
    return linear.packed


def _shape(layer: Layer, weights: Sequence[PackedWeight]) -> object:
    """Return what all layers must have in common; each may quantise its weights in its own way."""
    assert isinstance(layer.attention_norm, KernelNorm)
    plain = {weight.data.dtype for weight in weights if weight.codes is None}
    dtypes = plain | {layer.attention_norm.weight.dtype}
    return dtypes, [(weight.width, weight.columns) for weight in weights]


def _struct(layer: Layer, weights: Sequence[PackedWeight], rope: int) -> bindings.DecoderLayer:
    """Return the addresses of a layer's weights; ``rope``: place of its tables, -1 for none."""
    heads = layer.attention.heads
    assert isinstance(heads, KernelHeadOp)
    query_key_value, output, up, down = map(_matrix, weights)
    return bindings.DecoderLayer(
        attention_norm=_norm(layer.attention_norm),
        attention_output_norm=_norm(layer.attention_output_norm),
        mlp_norm=_norm(layer.mlp_norm),
        mlp_output_norm=_norm(layer.mlp_output_norm),
        query_norm=_vector(heads.query_norm),
        key_norm=_vector(heads.key_norm),
        query_key_value=query_key_value,
        output=output,
        up=up,
        down=down,
        rope=rope,
    )


def _matrix(weight: PackedWeight) -> bindings.Matrix:
    codes = weight.codes or bindings.CodeFormat()
    bias = _vector(weight.bias)
    return bindings.Matrix(weight.data.data_ptr(), bias, weight.width, weight.columns, codes)


def _norm(norm: Norm | None) -> bindings.Norm:
    if norm is None:
        return bindings.Norm()
    assert isinstance(norm, KernelNorm)
    return bindings.Norm(_vector(norm.weight), _vector(norm.bias))


def _vector(weight: Tensor | None) -> int | None:
    return None if weight is None else weight.data_ptr()
