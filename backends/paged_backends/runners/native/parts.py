"""What layers are made of, in plain PyTorch: products, norms, rotation, activations.

A model is put together from the parts that a :class:`Parts` makes; there is one that works
everywhere, here, and one over our own kernels for CPUs.

Shapes: T rows, I inputs, O outputs, E width of a norm, N query heads, K key heads, D head_dim,
H half of it.
"""

# ruff: noqa: N803 - the shape of an array is the upper-case end of its name
from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from paged_backends.runners.native.config import Activation
from paged_backends.runners.native.rope import Turns

Map = Callable[[Tensor], Tensor]
"""From rows to rows."""


class Product(Protocol):
    """``rows @ weight.T + bias``, for rows [T, I]."""

    def __call__(self, rows_TI: Tensor, residual_TO: Tensor | None = None) -> Tensor:
        """Return [T, O]; ``residual_TO`` is added to, in place, and returned instead."""


class Heads(Protocol):
    """What is done to query and key heads before they are compared."""

    def __call__(self, query_TND: Tensor, key_TKD: Tensor, turns: Turns | None) -> None:
        """Norm and turn them, in place."""


class Parts(ABC):
    """Makes parts. All of them compute in float32 and return what they are given."""

    copies_weights: bool
    """Products keep no reference to the weights that they are made of."""

    @abstractmethod
    def product(self, weight_OI: Tensor, bias_O: Tensor | None = None) -> Product:
        """Return the product with a weight."""

    @abstractmethod
    def rms_norm(self, weight_E: Tensor, eps: float, offset: float) -> Map:
        """Return the map that divides rows by their root mean square.

        Args:
            offset: added to the weight that the result is multiplied with.
        """

    @abstractmethod
    def heads(
        self, query_norm_D: Tensor | None, key_norm_D: Tensor | None, eps: float, offset: float
    ) -> Heads:
        """Return what norms heads, where there are weights for that, and turns them."""

    @abstractmethod
    def gated(self, activation: Activation) -> Map:
        """Return the map from gates and values side by side to ``activation(gates) * values``."""

    @abstractmethod
    def best(self, logits: Tensor) -> Tensor:
        """Return the place [T] int64 of each row's best entry: the first of equals."""

    def layer_norm(
        self, size: int, weight_E: Tensor | None, bias_E: Tensor | None, eps: float
    ) -> Map:
        """Return the map that gives rows a mean of 0 and a variance of 1."""
        weight = None if weight_E is None else weight_E.float()
        bias = None if bias_E is None else bias_E.float()

        def apply(rows: Tensor) -> Tensor:
            normed = functional.layer_norm(rows.float(), (size,), weight, bias, eps)
            return normed.to(rows.dtype)

        return apply

    def activation(self, name: Activation) -> Map:
        """Return an activation of its own."""
        return _ACTIVATIONS[name]


class TorchParts(Parts):
    """Parts for any device and format."""

    copies_weights = False

    def product(self, weight_OI: Tensor, bias_O: Tensor | None = None) -> Product:
        """Return ``torch.nn.functional.linear`` with this weight."""

        def apply(rows_TI: Tensor, residual_TO: Tensor | None = None) -> Tensor:
            result = functional.linear(rows_TI, weight_OI, bias_O)
            return result if residual_TO is None else residual_TO.add_(result)

        return apply

    def rms_norm(self, weight_E: Tensor, eps: float, offset: float) -> Map:
        """Return the norm, in three operations where the format is not float32."""
        weight = weight_E.float() + offset

        def apply(rows: Tensor) -> Tensor:
            return functional.rms_norm(rows.float(), weight.shape, weight, eps).to(rows.dtype)

        return apply

    def heads(
        self, query_norm_D: Tensor | None, key_norm_D: Tensor | None, eps: float, offset: float
    ) -> Heads:
        """Return both steps, one after the other."""
        norms = [
            None if weight is None else self.rms_norm(weight, eps, offset)
            for weight in (query_norm_D, key_norm_D)
        ]

        def apply(query_TND: Tensor, key_TKD: Tensor, turns: Turns | None) -> None:
            for heads, norm in zip((query_TND, key_TKD), norms, strict=True):
                if norm is not None:
                    heads.copy_(norm(heads))
                if turns is not None:
                    turns.turn(heads)

        return apply

    def gated(self, activation: Activation) -> Map:
        """Return the activation times the values."""
        act = self.activation(activation)

        def apply(rows: Tensor) -> Tensor:
            gates, values = rows.chunk(2, dim=-1)
            return act(gates) * values

        return apply

    def best(self, logits: Tensor) -> Tensor:
        """Return the first of equals, on every device."""
        return logits.argmax(dim=-1)


def _gelu_tanh(rows: Tensor) -> Tensor:
    return functional.gelu(rows, approximate="tanh")


_ACTIVATIONS: dict[Activation, Map] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": _gelu_tanh,
    "relu": functional.relu,
}


def soft_cap(logits: Tensor, cap: float) -> Tensor:
    """Bend values smoothly so that none exceeds ``cap``; in place."""
    return logits.div_(cap).tanh_().mul_(cap)


def rounded(value: float, dtype: torch.dtype) -> float:
    """Return ``value`` as exact as ``dtype`` holds it."""
    return float(torch.tensor(value, dtype=dtype))
