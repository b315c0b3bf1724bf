"""Parts over our own kernels for CPUs: weights packed once, a call of C per part.

Shapes as in :mod:`paged_backends.native.parts`.
"""

# ruff: noqa: N803 - the shape of an array is the upper-case end of its name
from __future__ import annotations

import torch
from torch import Tensor

from paged_backends.cpu.kernels import Kernels
from paged_backends.native.config import Activation
from paged_backends.native.parts import Heads, Map, Product, TorchParts
from paged_backends.native.rope import Turns


class KernelParts(TorchParts):
    """Parts for float32 and bfloat16 on a CPU; what has no kernel is as everywhere."""

    copies_weights = True

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels

    def product(self, weight_OI: Tensor, bias_O: Tensor | None = None) -> Product:
        """Return the product with a packed copy of the weight."""
        packed, linear = self._kernels.pack(weight_OI, bias_O), self._kernels.linear

        def apply(rows_TI: Tensor, residual_TO: Tensor | None = None) -> Tensor:
            return linear(rows_TI, packed, residual_TO, residual_TO)

        return apply

    def rms_norm(self, weight_E: Tensor, eps: float, offset: float) -> Map:
        """Return the norm in one call."""
        norm = self._kernels.rms_norm
        weight = weight_E.clone()

        def apply(rows: Tensor) -> Tensor:
            return norm(rows, weight, eps, None, offset)

        return apply

    def heads(
        self, query_norm_D: Tensor | None, key_norm_D: Tensor | None, eps: float, offset: float
    ) -> Heads:
        """Return both steps in one call, where there is a rotation."""
        elsewhere = super().heads(query_norm_D, key_norm_D, eps, offset)
        rope = self._kernels.rope
        query_norm, key_norm = (
            None if weight is None else weight.clone() for weight in (query_norm_D, key_norm_D)
        )

        def apply(query_TND: Tensor, key_TKD: Tensor, turns: Turns | None) -> None:
            if turns is None:
                elsewhere(query_TND, key_TKD, None)
                return
            rope(
                query_TND,
                key_TKD,
                turns.cos_TH,
                turns.sin_TH,
                turns.rows_T,
                query_norm,
                key_norm,
                eps,
                offset,
            )

        return apply

    def gated(self, activation: Activation) -> Map:
        """Return the gate in one call, for the two activations that have one."""
        if activation == "silu":
            return self._kernels.silu_mul
        if activation == "gelu_tanh":
            return self._kernels.gelu_mul
        return super().gated(activation)

    def best(self, logits: Tensor) -> Tensor:
        """Return the first of equals."""
        return self._kernels.argmax(logits)


def fits(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether there are kernels for this format here."""
    return device.type == "cpu" and dtype in (torch.float32, torch.bfloat16)
