"""The operations that layers are made of: linear, norms, rotary embedding, activations.

An :class:`Ops` makes them in plain PyTorch, for any device. Subclasses take our own kernels: for
CPUs in :mod:`~paged_backends.runners.native.cpu_layers`, for GPUs in
:mod:`~paged_backends.runners.native.triton_ops`.

Shapes: T tokens, I inputs, O outputs, E hidden size, H query heads, K key/value heads, D head_dim,
F rotated pairs of a head: half of D, R rows that sample a token, V vocabulary.
"""

# ruff: noqa: N803, N806 - the shape of an array is the upper-case end of its name
from __future__ import annotations

from collections.abc import Callable, Sequence
from math import pi
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from paged_backends.kernels.cpu import ProductsName
from paged_backends.quantization.matrix import QuantizedMatrix
from paged_backends.runners.native.config import Activation, Rope
from paged_backends.runners.native.decoder import HeadOp, Linear, Norm, Rotary, RowOp, added

if TYPE_CHECKING:
    from paged_backends.kernels.cpu.tensor_kernels import Kernels


def frequencies(rope: Rope, head_dim: int) -> Tensor:
    """Return the frequency of each pair, [F] float32: its angle per position.

    ``linear`` divides all by ``factor``, ``divided`` each by its own divisor, as GGUF files store
    them. ``llama3`` divides by ``factor`` the frequencies of pairs that complete less than
    ``low_freq_factor`` rotations over the original length of the model, leaves those of pairs that
    complete more than ``high_freq_factor``, and interpolates between them.
    """
    exponents_F = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    base_F = 1.0 / (rope.theta**exponents_F)
    if rope.scaling == "default":
        return base_F
    if rope.scaling == "linear":
        return base_F / rope.factor
    if rope.scaling == "divided":
        return base_F / torch.tensor(rope.divisors)
    rotations_F = rope.original_length * base_F / (2 * pi)
    low, high = rope.low_freq_factor, rope.high_freq_factor
    blend_F = ((rotations_F - low) / (high - low)).clamp(0, 1)
    return (1 - blend_F) * base_F / rope.factor + blend_F * base_F


# ---------------------------------------------------------------------- operations

_DEQUANTIZED = 1 << 20
"""Weights that are in float32 at a time: they stay in a processor's cache."""


class Ops:
    """Makes operations, here in plain PyTorch for any device and dtype.

    They compute in float32 and return the dtype of their argument.
    """

    kernels: Kernels | None = None
    """Kernels that compute the operations; ``None``: PyTorch does."""
    copies_weights = False
    """Operations keep no reference to the weights that they are made from."""
    quantized_products: ProductsName | None = None
    """Name of the products with quantised weights; ``None``: they are of floats."""
    rotary: Callable[[Tensor, Tensor], Rotary] = Rotary.at
    """Returns the rotary embedding of a batch, by its positions and the frequencies of pairs."""

    def __init__(self, *, computes_quantized: bool = True) -> None:
        """
        Args:
            computes_quantized: quantised weights stay quantised; otherwise they are dequantised
                when they are loaded.
        """
        self.computes_quantized = computes_quantized

    def linear(self, weight_OI: Tensor, bias_O: Tensor | None = None) -> Linear:
        """Return the linear layer with this weight."""

        def apply(rows_TI: Tensor, residual_TO: Tensor | None = None) -> Tensor:
            return added(functional.linear(rows_TI, weight_OI, bias_O), residual_TO)

        return apply

    def stacked(self, weights: Sequence[Tensor], bias_O: Tensor | None = None) -> Linear:
        """Return the linear layer with these weights [., I], one below the other."""
        stacked = torch.cat(list(weights)) if len(weights) > 1 else weights[0].contiguous()
        return self.linear(stacked, bias_O)

    def quantized(self, matrix: QuantizedMatrix, bias_O: Tensor | None = None) -> Linear:
        """Return the linear layer with this weight, which stays quantised.

        Here, each call dequantises some of its rows at a time.
        """
        step = max(1, _DEQUANTIZED // matrix.shape[1])
        slices = [slice(first, first + step) for first in range(0, matrix.shape[0], step)]
        bias = None if bias_O is None else bias_O.float()

        def apply(rows_TI: Tensor, residual_TO: Tensor | None = None) -> Tensor:
            rows, result = rows_TI.float(), rows_TI.new_empty(len(rows_TI), matrix.shape[0])
            for some in slices:
                part = matrix.rows(some).dequantized()
                part_bias = None if bias is None else bias[some]
                result[:, some] = functional.linear(rows, part, part_bias)
            return added(result, residual_TO)

        return apply

    def rms_norm(self, weight_E: Tensor, eps: float, offset: float) -> Norm:
        """Return RMSNorm.

        Args:
            offset: added to the weight; 1 for Gemma's.
        """
        weight = weight_E.float() + offset

        def apply(rows_TE: Tensor, residual_TE: Tensor | None = None) -> Tensor:
            normed = functional.rms_norm(rows_TE.float(), weight.shape, weight, eps)
            return added(normed.to(rows_TE.dtype), residual_TE)

        return apply

    def heads(
        self, query_norm_D: Tensor | None, key_norm_D: Tensor | None, eps: float, offset: float
    ) -> HeadOp:
        """Return the norms of heads, where they have weights, followed by the rotary embedding."""
        norms = [
            None if weight is None else self.rms_norm(weight, eps, offset)
            for weight in (query_norm_D, key_norm_D)
        ]

        def apply(query_THD: Tensor, key_TKD: Tensor, rotary: Rotary | None) -> None:
            for heads, norm in zip((query_THD, key_TKD), norms, strict=True):
                if norm is not None:
                    heads.copy_(norm(heads))
                if rotary is not None:
                    rotary.rotate(heads)

        return apply

    def gated(self, activation: Activation) -> RowOp:
        """Return ``activation(gate) * up`` of rows that hold gate and up side by side."""
        act = self.activation(activation)

        def apply(rows: Tensor) -> Tensor:
            gate, up = rows.chunk(2, dim=-1)
            return act(gate) * up

        return apply

    def best(self, logits_RV: Tensor) -> tuple[Tensor, Tensor]:
        """Return the best token [R] int64 of each row, the first of equals, and its logit [R]."""
        logits_R, best_R = logits_RV.max(dim=-1)
        return best_R, logits_R

    def layer_norm(
        self, size: int, weight_E: Tensor | None, bias_E: Tensor | None, eps: float
    ) -> Norm:
        """Return LayerNorm."""
        weight = None if weight_E is None else weight_E.float()
        bias = None if bias_E is None else bias_E.float()

        def apply(rows_TE: Tensor, residual_TE: Tensor | None = None) -> Tensor:
            normed = functional.layer_norm(rows_TE.float(), (size,), weight, bias, eps)
            return added(normed.to(rows_TE.dtype), residual_TE)

        return apply

    def activation(self, name: Activation) -> RowOp:
        """Return an activation without a gate."""
        return _ACTIVATIONS[name]


def _gelu_tanh(rows: Tensor) -> Tensor:
    return functional.gelu(rows, approximate="tanh")


_ACTIVATIONS: dict[Activation, RowOp] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": _gelu_tanh,
    "relu": functional.relu,
}


def rounded(value: float, dtype: torch.dtype) -> float:
    """Return ``value`` rounded to ``dtype``."""
    return float(torch.tensor(value, dtype=dtype))
