"""What layers are made of, in plain PyTorch: products, norms, activations.

Shapes: T rows, I inputs, O outputs, E width of a norm.
"""

# ruff: noqa: N803 - the shape of an array is the upper-case end of its name
from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.nn import functional

from paged_backends.native.config import Activation

Map = Callable[[Tensor], Tensor]
"""From rows to rows."""


class Linear:
    """``x @ weight.T + bias`` for rows ``x`` [T, I]."""

    __slots__ = ("_bias_O", "_weight_OI")

    def __init__(self, weight_OI: Tensor, bias_O: Tensor | None = None) -> None:
        self._weight_OI = weight_OI
        self._bias_O = bias_O

    def __call__(self, rows_TI: Tensor) -> Tensor:
        return functional.linear(rows_TI, self._weight_OI, self._bias_O)


class RmsNorm:
    """Divides rows by their root mean square; computed in float32."""

    __slots__ = ("_eps", "_weight_E")

    def __init__(self, weight_E: Tensor, eps: float) -> None:
        self._weight_E = weight_E.float()
        self._eps = eps

    def __call__(self, rows: Tensor) -> Tensor:
        normed = functional.rms_norm(
            rows.float(), (len(self._weight_E),), self._weight_E, self._eps
        )
        return normed.to(rows.dtype)


class LayerNorm:
    """Gives rows a mean of 0 and a variance of 1; computed in float32."""

    __slots__ = ("_bias_E", "_eps", "_size", "_weight_E")

    def __init__(
        self, size: int, weight_E: Tensor | None, bias_E: Tensor | None, eps: float
    ) -> None:
        self._size = size
        self._weight_E = None if weight_E is None else weight_E.float()
        self._bias_E = None if bias_E is None else bias_E.float()
        self._eps = eps

    def __call__(self, rows: Tensor) -> Tensor:
        normed = functional.layer_norm(
            rows.float(), (self._size,), self._weight_E, self._bias_E, self._eps
        )
        return normed.to(rows.dtype)


def _gelu_tanh(rows: Tensor) -> Tensor:
    return functional.gelu(rows, approximate="tanh")


ACTIVATIONS: dict[Activation, Map] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": _gelu_tanh,
    "relu": functional.relu,
}


def gated(activation: Map) -> Map:
    """Return the map from gates and values side by side to ``activation(gates) * values``."""

    def apply(rows: Tensor) -> Tensor:
        gates, values = rows.chunk(2, dim=-1)
        return activation(gates) * values

    return apply


def soft_cap(logits: Tensor, cap: float) -> Tensor:
    """Bend values smoothly so that none exceeds ``cap``; in place."""
    return logits.div_(cap).tanh_().mul_(cap)
