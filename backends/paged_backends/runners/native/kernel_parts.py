"""Parts over our own kernels for CPUs: weights packed once, a call of C per part.

Shapes as in :mod:`paged_backends.runners.native.parts`.
"""

# ruff: noqa: N803 - the shape of an array is the upper-case end of its name
from __future__ import annotations

import torch
from torch import Tensor

from paged_backends.kernels.cpu.kernels import Kernels, PackedWeight
from paged_backends.runners.native.config import Activation
from paged_backends.runners.native.parts import Heads, Map, Product, TorchParts
from paged_backends.runners.native.rope import Turns


class KernelProduct:
    """The product with a packed copy of a weight."""

    __slots__ = ("_kernels", "packed")

    def __init__(self, kernels: Kernels, packed: PackedWeight) -> None:
        self._kernels = kernels
        self.packed = packed

    def __call__(self, rows_TI: Tensor, residual_TO: Tensor | None = None) -> Tensor:
        return self._kernels.linear(rows_TI, self.packed, residual_TO, residual_TO)


class KernelNorm:
    """Divides rows by their root mean square."""

    __slots__ = ("_eps", "_kernels", "_offset", "bias", "weight")

    def __init__(self, kernels: Kernels, weight: Tensor, eps: float, offset: float) -> None:
        self._kernels = kernels
        self.weight = weight
        self.bias = None
        self._eps = eps
        self._offset = offset

    def __call__(self, rows: Tensor) -> Tensor:
        return self._kernels.rms_norm(rows, self.weight, self._eps, None, self._offset)


class KernelLayerNorm:
    """Gives rows a mean of 0 and a variance of 1."""

    __slots__ = ("_eps", "_kernels", "bias", "weight")

    def __init__(self, kernels: Kernels, weight: Tensor, bias: Tensor | None, eps: float) -> None:
        self._kernels = kernels
        self.weight = weight
        self.bias = bias
        self._eps = eps

    def __call__(self, rows: Tensor) -> Tensor:
        return self._kernels.layer_norm(rows, self.weight, self.bias, self._eps)


class KernelHeads:
    """Norms heads, where there are weights for that, and turns them, in one call."""

    __slots__ = ("_elsewhere", "_eps", "_kernels", "_offset", "key_norm", "query_norm")

    def __init__(
        self,
        kernels: Kernels,
        query_norm: Tensor | None,
        key_norm: Tensor | None,
        eps: float,
        offset: float,
        elsewhere: Heads,
    ) -> None:
        """``elsewhere`` serves where nothing turns."""
        self._kernels = kernels
        self.query_norm = query_norm
        self.key_norm = key_norm
        self._eps = eps
        self._offset = offset
        self._elsewhere = elsewhere

    def __call__(self, query_TND: Tensor, key_TKD: Tensor, turns: Turns | None) -> None:
        if turns is None:
            self._elsewhere(query_TND, key_TKD, None)
            return
        self._kernels.rope(
            query_TND,
            key_TKD,
            turns.cos_TH,
            turns.sin_TH,
            turns.rows_T,
            self.query_norm,
            self.key_norm,
            self._eps,
            self._offset,
        )


class KernelParts(TorchParts):
    """Parts for float32 and bfloat16 on a CPU; what has no kernel is as everywhere."""

    copies_weights = True

    def __init__(self, kernels: Kernels) -> None:
        self.kernels = kernels

    def product(self, weight_OI: Tensor, bias_O: Tensor | None = None) -> Product:
        """Return the product with a packed copy of the weight."""
        return KernelProduct(self.kernels, self.kernels.pack(weight_OI, bias_O))

    def rms_norm(self, weight_E: Tensor, eps: float, offset: float) -> Map:
        """Return the norm in one call."""
        return KernelNorm(self.kernels, weight_E.clone(), eps, offset)

    def layer_norm(
        self, size: int, weight_E: Tensor | None, bias_E: Tensor | None, eps: float
    ) -> Map:
        """Return the norm in one call, where it has weights."""
        if weight_E is None:
            return super().layer_norm(size, weight_E, bias_E, eps)
        bias = None if bias_E is None else bias_E.clone()
        return KernelLayerNorm(self.kernels, weight_E.clone(), bias, eps)

    def heads(
        self, query_norm_D: Tensor | None, key_norm_D: Tensor | None, eps: float, offset: float
    ) -> Heads:
        """Return both steps in one call, where there is a rotation."""
        query_norm = None if query_norm_D is None else query_norm_D.clone()
        key_norm = None if key_norm_D is None else key_norm_D.clone()
        elsewhere = super().heads(query_norm, key_norm, eps, offset)
        return KernelHeads(self.kernels, query_norm, key_norm, eps, offset, elsewhere)

    def gated(self, activation: Activation) -> Map:
        """Return the gate in one call, for the two activations that have one."""
        if activation == "silu":
            return self.kernels.silu_mul
        if activation == "gelu_tanh":
            return self.kernels.gelu_mul
        return super().gated(activation)

    def best(self, logits: Tensor) -> Tensor:
        """Return the first of equals."""
        return self.kernels.argmax(logits)


def fits(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether there are kernels for this format here."""
    return device.type == "cpu" and dtype in (torch.float32, torch.bfloat16)
