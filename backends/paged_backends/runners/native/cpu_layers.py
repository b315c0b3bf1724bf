"""Layers over the kernels for CPUs: operations that are one call each, and all layers in one call.

Weights are packed once. A step of a small model is some hundreds of operations of a few
microseconds each; the overhead of calling each of them from Python is of the same order.

Shapes as in :mod:`paged_backends.runners.native.ops`.
"""

# ruff: noqa: N803 - the shape of an array is the upper-case end of its name
from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from ctypes import c_void_p
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from paged_backends.kernels.cpu import bindings
from paged_backends.kernels.cpu.packed_weight import PackedWeight
from paged_backends.kernels.cpu.tensor_kernels import Arena, Kernels
from paged_backends.quantization.matrix import QuantizedMatrix
from paged_backends.runners.native.config import Activation, Rope
from paged_backends.runners.native.decoder import (
    HeadOp,
    Linear,
    Norm,
    Rotaries,
    Rotary,
    RowOp,
    added,
)
from paged_backends.runners.native.ops import Ops
from paged_backends.runners.native.share import Share
from paged_core.interfaces.attention import LayerAttention
from paged_core.interfaces.runner import SupportsFusedLayers

if TYPE_CHECKING:
    from paged_core.interfaces.runner import Attend


@dataclass(frozen=True, slots=True, eq=False)
class KernelLinear:
    """Linear layer with a packed copy of the weight."""

    kernels: Kernels
    packed: PackedWeight

    def __call__(self, rows_TI: Tensor, residual_TO: Tensor | None = None) -> Tensor:
        return self.kernels.linear(rows_TI, self.packed, residual_TO, residual_TO)


@dataclass(frozen=True, slots=True, eq=False)
class KernelNorm:
    """RMSNorm or LayerNorm."""

    weight: Tensor
    bias: Tensor | None
    compute: Callable[[Tensor, Tensor, Tensor | None], Tensor]
    """Returns it for rows, weight and bias."""

    def __call__(self, rows_TE: Tensor, residual_TE: Tensor | None = None) -> Tensor:
        return added(self.compute(rows_TE, self.weight, self.bias), residual_TE)


@dataclass(frozen=True, slots=True, eq=False)
class KernelHeadOp:
    """Norms of heads, where they have weights, and the rotary embedding, in one call."""

    kernels: Kernels
    query_norm: Tensor | None
    key_norm: Tensor | None
    eps: float
    offset: float
    without_rotary: HeadOp
    """Used by layers that have no rotary embedding."""

    def __call__(self, query_THD: Tensor, key_TKD: Tensor, rotary: Rotary | None) -> None:
        if rotary is None:
            self.without_rotary(query_THD, key_TKD, None)
            return
        self.kernels.rope(
            query_THD,
            key_TKD,
            rotary.cos_TF,
            rotary.sin_TF,
            rotary.rows_T,
            self.query_norm,
            self.key_norm,
            self.eps,
            self.offset,
        )


class KernelOps(Ops):
    """Operations for float32 and bfloat16 on a CPU; PyTorch where there is no kernel."""

    kernels: Kernels
    copies_weights = True

    def __init__(self, kernels: Kernels) -> None:
        super().__init__()
        self.kernels = kernels
        self.quantized_products = kernels.quantized_products

    def linear(self, weight_OI: Tensor, bias_O: Tensor | None = None) -> Linear:
        """Return the linear layer with a packed copy of the weight."""
        return KernelLinear(self.kernels, self.kernels.pack(weight_OI, bias_O))

    def quantized(self, matrix: QuantizedMatrix, bias_O: Tensor | None = None) -> Linear:
        """Return the linear layer with a packed copy of codes and scales."""
        return KernelLinear(self.kernels, self.kernels.pack_quantized(matrix, bias_O))

    def rms_norm(self, weight_E: Tensor, eps: float, offset: float) -> Norm:
        """Return RMSNorm in one call."""
        kernels = self.kernels
        return KernelNorm(
            weight_E.clone(),
            None,
            lambda rows, weight, _: kernels.rms_norm(rows, weight, eps, offset),
        )

    def layer_norm(
        self, size: int, weight_E: Tensor | None, bias_E: Tensor | None, eps: float
    ) -> Norm:
        """Return LayerNorm, in one call if it has weights."""
        if weight_E is None:
            return super().layer_norm(size, weight_E, bias_E, eps)
        kernels, own = self.kernels, None if bias_E is None else bias_E.clone()
        return KernelNorm(
            weight_E.clone(),
            own,
            lambda rows, weight, bias: kernels.layer_norm(rows, weight, bias, eps),
        )

    def heads(
        self, query_norm_D: Tensor | None, key_norm_D: Tensor | None, eps: float, offset: float
    ) -> HeadOp:
        """Return norms and rotary embedding in one call, for layers that have the latter."""
        query_norm = None if query_norm_D is None else query_norm_D.clone()
        key_norm = None if key_norm_D is None else key_norm_D.clone()
        without_rotary = super().heads(query_norm, key_norm, eps, offset)
        return KernelHeadOp(self.kernels, query_norm, key_norm, eps, offset, without_rotary)

    def gated(self, activation: Activation) -> RowOp:
        """Return the gate, in one call for the two activations that have a kernel."""
        if activation == "silu":
            return self.kernels.silu_mul
        if activation == "gelu_tanh":
            return self.kernels.gelu_mul
        return super().gated(activation)

    def best(self, logits_RV: Tensor) -> tuple[Tensor, Tensor]:
        """Return the first of equals."""
        best = self.kernels.argmax(logits_RV)
        return best, logits_RV.gather(1, best[:, None])[:, 0]


class FloatProducts(KernelOps):
    """The same, with quantised weights dequantised in each call: activations are not rounded."""

    copies_weights = False

    def __init__(self, kernels: Kernels) -> None:
        super().__init__(kernels)
        self.quantized_products = None

    def quantized(self, matrix: QuantizedMatrix, bias_O: Tensor | None = None) -> Linear:
        """Return the linear layer with this weight, computed by PyTorch."""
        return Ops.quantized(self, matrix, bias_O)


def fits(dtype: torch.dtype, device: torch.device) -> bool:
    """Return whether there are kernels for this dtype on this device."""
    return device.type == "cpu" and dtype in (torch.float32, torch.bfloat16)


# ---------------------------------------------------------------------- all layers in one call

_ADDRESS = 8
"""Bytes that an address takes."""


@runtime_checkable
class SupportsKernelCall(Protocol):
    """Attention of one layer that the kernels can call: component ``cpu`` binds such layers."""

    def kernel_call(self, plan: Any, /) -> int:
        """Return the address of an ``AttentionCall``; query, key, value and result are unset.

        It is valid while the layer and ``plan`` exist, and until the next call of the layer.
        """


class FusedLayers:
    """All layers of a decoder, if the kernels can call their attention.

    Norms come before attention and before the feed-forward. It serves one caller at a time: it
    keeps the memory of intermediate results.
    """

    def __init__(
        self,
        call: bindings.DecoderCall,
        structs: Any,
        weights: object,
        ropes: Sequence[Rope],
        dtype: torch.dtype,
        kernels: Kernels,
        share: Share,
    ) -> None:
        """
        Args:
            call: the kernel's argument, but for what a step sets.
            structs: the layers that it points to.
            weights: those that the layers point to, to be kept.
            ropes: the rotary embeddings that they have, in the order of their numbers.
            share: what this rank holds: of ``output`` and ``down``, some of the columns.
        """
        self._call, self._structs, self._weights = call, structs, weights
        self._ropes, self._dtype = ropes, dtype
        self._kernels = kernels
        self._memory = torch.empty(0, dtype=dtype)
        self._share = share
        self._lost: BaseException | None = None
        self._checked: Sequence[LayerAttention] | None = None
        self._attention: list[SupportsKernelCall] = []
        if share.size > 1:
            call.all_reduce = bindings.AllReduce(self._all_reduce)

    def _all_reduce(self, numbers: int) -> None:
        """Sum over the ranks, in the middle of a call; what this raises cannot pass through it."""
        if self._lost is None:
            try:
                self._share.all_reduce(self._memory[:numbers])
            except BaseException as error:  # noqa: BLE001 - raised when the call returns
                self._lost = error

    def run(self, hidden_TE: Tensor, rotaries: Rotaries, attend: Attend) -> bool:
        """See :class:`~paged_backends.runners.native.decoder.FusedStack`.

        Raises:
            ExecutorLost: another rank is lost; ``hidden_TE`` holds nothing of use.
        """
        if not isinstance(attend, SupportsFusedLayers):
            return False
        if attend.layers is not self._checked:
            self._checked = attend.layers
            self._attention = [
                layer for layer in attend.layers if isinstance(layer, SupportsKernelCall)
            ]
        if len(self._attention) != len(attend.layers):
            return False
        call = self._call
        call.hidden, call.hidden_stride = hidden_TE.data_ptr(), hidden_TE.stride(0)
        if len(hidden_TE) != call.rows:
            call.rows = len(hidden_TE)
            needed = self._kernels.bindings.decoder_numbers(ctypes.addressof(call))
            if needed > len(self._memory):
                self._memory = Arena().take(needed, self._dtype)
            call.memory = self._memory.data_ptr()
        tables = [rotary for rope in self._ropes if (rotary := rotaries[rope]) is not None]
        call.positions = tables[0].rows_T.data_ptr() if tables else None
        call.half = tables[0].cos_TF.shape[1] if tables else 0
        parts = [table.cos_TF for table in tables] + [table.sin_TF for table in tables]
        pointers = (c_void_p * len(parts))(*(part.data_ptr() for part in parts))
        call.cosines = ctypes.addressof(pointers)
        call.sines = ctypes.addressof(pointers) + len(tables) * _ADDRESS
        call.threads = self._kernels.num_threads
        for struct, layer in zip(self._structs, self._attention, strict=True):
            struct.attention = layer.kernel_call(attend.plan)
        self._kernels.bindings.decoder(ctypes.addressof(call))
        if self._lost is not None:
            raise self._lost
        return True
