"""All layers of a decoder in one call of the kernels, for the architectures that they cover.

A step of a small model is some hundreds of operations of a few microseconds each; the overhead of
calling each of them from Python is of the same order.

Shapes: T tokens, E hidden size, D head_dim, P positions, F rotated pairs of a head: half of D.
"""

# ruff: noqa: N803 - the shape of an array is the upper-case end of its name
from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_void_p
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from paged_backends.kernels.cpu.packed_weight import PANEL, Arena, PackedWeight
from paged_backends.kernels.cpu.structs import (
    AllReduce,
    CodeFormat,
    DecoderCall,
    DecoderLayer,
    Matrix,
    Norm,
)
from paged_backends.kernels.cpu.tensor_kernels import Kernels
from paged_backends.runners.native.config import DecoderConfig, Rope
from paged_backends.runners.native.decoder import Layer, Rotaries
from paged_backends.runners.native.kernel_ops import KernelHeadOp, KernelLinear, KernelNorm
from paged_backends.runners.native.ops import Linear
from paged_backends.runners.native.ops import Norm as NormOp
from paged_backends.runners.native.share import Share, SummedLinear
from paged_core.interfaces.attention import LayerAttention
from paged_core.interfaces.runner import SupportsFusedLayers

if TYPE_CHECKING:
    from paged_core.interfaces.runner import Attend

_ACTIVATIONS = {"silu": 0, "gelu_tanh": 1, "relu": 2}
_NORMS = {"rms": 0, "layer": 1}
_TYPES = {torch.float32: 0, torch.bfloat16: 1}
_ADDRESS = 8
"""Bytes that an address takes."""


@runtime_checkable
class SupportsKernelCall(Protocol):
    """Attention of one layer that the kernels can call: component ``cpu`` binds such layers."""

    def kernel_call(self, plan: Any, /) -> int:
        """Return the address of an ``AttentionCall``; query, key, value and result are unset.

        It is valid while the layer and ``plan`` exist, and until the next call of the layer.
        """


@dataclass(frozen=True, slots=True, eq=False)
class FusedNorm:
    """Weights [E] of a norm, in the dtype of the products."""

    weight: Tensor
    bias: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FusedLayer:
    """Weights of one layer."""

    attention_norm: FusedNorm
    query_key_value: PackedWeight
    query_norm: Tensor | None = None
    """[D]: of the RMSNorm of every query head, before the rotary embedding."""
    key_norm: Tensor | None = None
    rope: int | None = 0
    """Index of the tables of cosines and sines; ``None``: no rotary embedding."""
    output: PackedWeight
    attention_output_norm: FusedNorm | None = None
    """Of the output of attention, before it is added."""
    mlp_norm: FusedNorm
    up: PackedWeight
    """Packed; if the feed-forward is gated, the weights of the gates come first."""
    down: PackedWeight
    mlp_output_norm: FusedNorm | None = None


class FusedDecoder:
    """Layers with norms before attention and before the feed-forward, gated or not.

    It serves one caller at a time: it keeps the memory of intermediate results.
    """

    def __init__(
        self,
        kernels: Kernels,
        layers: Sequence[FusedLayer],
        *,
        activation: Literal["silu", "gelu_tanh", "relu"],
        eps: float,
        gated: bool = True,
        norm: Literal["rms", "layer"] = "rms",
        norm_offset: float = 0.0,
        share: Share = Share(),  # noqa: B008 - it is frozen
    ) -> None:
        """
        Args:
            activation: of the gates; without gates, of ``up``.
            eps: of all norms.
            norm: kind of all norms but those of heads.
            norm_offset: added to the weights of all norms; 1 for Gemma's.
            share: what this rank holds: of ``output`` and ``down``, some of the columns.

        Raises:
            ValueError: the layers have different shapes or types, or the width of a gated
                feed-forward is not a multiple of 32; call the kernels one by one instead.
        """
        first = layers[0]
        for layer in layers:
            if gated and layer.down.columns % PANEL:
                raise ValueError(
                    f"the feed-forward is {layer.down.columns} wide, which is not a multiple of "
                    f"{PANEL}"
                )
            if _shape(layer) != _shape(first):
                raise ValueError("all layers must have the same shapes and types")
        self._kernels = kernels
        self._layers = list(layers)  # kept alive: the kernels get bare addresses
        self._dtype = first.attention_norm.weight.dtype
        self._structs = (DecoderLayer * len(layers))(*(_struct(layer) for layer in layers))
        self._memory = torch.empty(0, dtype=self._dtype)
        self._share = share
        self._lost: BaseException | None = None
        self._call = DecoderCall(
            layers=ctypes.addressof(self._structs),
            num_layers=len(layers),
            width=first.output.width,
            activation=_ACTIVATIONS[activation],
            gated=gated,
            norm_kind=_NORMS[norm],
            epsilon=eps,
            offset=norm_offset,
            type=_TYPES[self._dtype],
        )
        if share.size > 1:
            self._call.all_reduce = AllReduce(self._all_reduce)

    def _all_reduce(self, numbers: int) -> None:
        """Sum over the ranks, in the middle of a call; what this raises cannot pass through it."""
        if self._lost is None:
            try:
                self._share.all_reduce(self._memory[:numbers])
            except BaseException as error:  # noqa: BLE001 - raised when the call returns
                self._lost = error

    def forward(
        self,
        hidden: Tensor,
        positions: Tensor | None,
        cos: Sequence[Tensor],
        sin: Sequence[Tensor],
        attention: Sequence[SupportsKernelCall],
        plan: Any,
    ) -> None:
        """Run all layers over ``hidden`` [T, E], in place; keys and values go to the cache.

        Args:
            positions: [T] int64: rows of ``cos`` and ``sin``; ``None``: no rotary embedding.
            cos: for every rope of the layers, [P, F] float32, contiguous.
            sin: as ``cos``.
            attention: of every layer, bound by component ``cpu`` with the same instruction set.
            plan: of this step, from that component.

        Raises:
            ExecutorLost: another rank is lost; ``hidden`` holds nothing of use.
        """
        call = self._call
        call.hidden, call.hidden_stride = hidden.data_ptr(), hidden.stride(0)
        call.positions = None if positions is None else positions.data_ptr()
        if len(hidden) != call.rows:
            call.rows = len(hidden)
            needed = self._kernels.bindings.decoder_numbers(ctypes.addressof(call))
            if needed > len(self._memory):
                self._memory = Arena().take(needed, self._dtype)
            call.memory = self._memory.data_ptr()
        count = len(cos)
        tables = (c_void_p * (2 * count))(*(table.data_ptr() for table in (*cos, *sin)))
        call.cosines = ctypes.addressof(tables)
        call.sines = ctypes.addressof(tables) + count * _ADDRESS
        call.half = cos[0].shape[1] if count else 0
        call.threads = self._kernels.num_threads
        for struct, layer in zip(self._structs, attention, strict=True):
            struct.attention = layer.kernel_call(plan)
        self._kernels.bindings.decoder(ctypes.addressof(call))
        if self._lost is not None:
            raise self._lost


def _shape(layer: FusedLayer) -> object:
    """What all layers must have in common; each may quantise its weights in its own way."""
    weights = (layer.query_key_value, layer.output, layer.up, layer.down)
    plain = {weight.data.dtype for weight in weights if weight.codes is None}
    dtypes = plain | {layer.attention_norm.weight.dtype}
    return dtypes, [(weight.width, weight.columns) for weight in weights]


def _struct(layer: FusedLayer) -> DecoderLayer:
    def matrix(weight: PackedWeight) -> Matrix:
        bias = None if weight.bias is None else weight.bias.data_ptr()
        codes = weight.codes or CodeFormat()
        return Matrix(weight.data.data_ptr(), bias, weight.width, weight.columns, codes)

    def vector(weight: Tensor | None) -> int | None:
        return None if weight is None else weight.data_ptr()

    def norm(weights: FusedNorm | None) -> Norm:
        return Norm() if weights is None else Norm(vector(weights.weight), vector(weights.bias))

    return DecoderLayer(
        attention_norm=norm(layer.attention_norm),
        attention_output_norm=norm(layer.attention_output_norm),
        mlp_norm=norm(layer.mlp_norm),
        mlp_output_norm=norm(layer.mlp_output_norm),
        query_norm=vector(layer.query_norm),
        key_norm=vector(layer.key_norm),
        query_key_value=matrix(layer.query_key_value),
        output=matrix(layer.output),
        up=matrix(layer.up),
        down=matrix(layer.down),
        rope=-1 if layer.rope is None else layer.rope,
    )


# ---------------------------------------------------------------------- of a decoder's layers


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


def fuse(
    config: DecoderConfig, layers: Sequence[Layer], kernels: Kernels, share: Share
) -> FusedLayers | None:
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
            share=share,
        )
    except ValueError:  # a shape that the kernels do not support
        return None
    return FusedLayers(decoder, ropes)


def _fused(layer: Layer, ropes: Sequence[Rope]) -> FusedLayer:
    attention, mlp = layer.attention, layer.mlp
    linears = (attention.query_key_value, attention.output, mlp.up, mlp.down)
    query_key_value, output, up, down = map(_packed, linears)
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


def _packed(linear: Linear) -> PackedWeight:
    if isinstance(linear, SummedLinear):
        bias_O = linear.bias_O  # noqa: N806 - its shape
        return replace(_packed(linear.product), bias=None if bias_O is None else bias_O.float())
    assert isinstance(linear, KernelLinear)
    return linear.packed


def _optional(norm: NormOp | None) -> FusedNorm | None:
    return None if norm is None else _norm(norm)


def _norm(norm: NormOp) -> FusedNorm:
    assert isinstance(norm, KernelNorm)
    return FusedNorm(norm.weight, norm.bias)
