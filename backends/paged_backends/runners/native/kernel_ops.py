"""Operations over the kernels for CPUs: weights are packed once, and each operation is one C call.

Shapes as in :mod:`paged_backends.runners.native.ops`.
"""

# ruff: noqa: N803 - the shape of an array is the upper-case end of its name
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from paged_backends.kernels.cpu.packed_weight import PackedWeight
from paged_backends.kernels.cpu.tensor_kernels import Kernels
from paged_backends.quantization.matrix import QuantizedMatrix
from paged_backends.runners.native.config import Activation
from paged_backends.runners.native.ops import HeadOp, Linear, Norm, Rotary, RowOp, TorchOps, added


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


class KernelOps(TorchOps):
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


def fits(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether there are kernels for this dtype on this device."""
    return device.type == "cpu" and dtype in (torch.float32, torch.bfloat16)
