"""Operations that also say what they are, so that a graph can be made of them.

The decoder's :class:`~paged_backends.runners.native.assembly.Assembly` makes its layers of these as
of any others; what they compute, PyTorch computes.

Shapes: I inputs, O outputs, E size of a norm, D head_dim.
"""

# ruff: noqa: N803, N815 - the shape of a tensor is the upper-case end of its name
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import torch
from torch import Tensor

from paged_backends.runners.native.config import Activation
from paged_backends.runners.native.ops import HeadOp, Norm, RowOp, TorchOps
from paged_backends.runners.native.rope import Rotary
from paged_backends.runners.native.stored_linear import StoredLinear

_Op = TypeVar("_Op")


@dataclass(frozen=True, slots=True)
class RecordedNorm:
    """RMSNorm or LayerNorm."""

    kind: Literal["rms", "layer"]
    weight_E: Tensor
    """float32, with its offset."""
    bias_E: Tensor | None
    eps: float
    compute: Norm

    def __call__(self, rows_TE: Tensor, residual_TE: Tensor | None = None) -> Tensor:
        return self.compute(rows_TE, residual_TE)


@dataclass(frozen=True, slots=True)
class RecordedHeads:
    """Norms of query and key heads, where there are any, followed by the rotary embedding."""

    query_norm: RecordedNorm | None
    key_norm: RecordedNorm | None
    compute: HeadOp

    def __call__(self, query_THD: Tensor, key_TKD: Tensor, rotary: Rotary | None) -> None:
        self.compute(query_THD, key_TKD, rotary)


@dataclass(frozen=True, slots=True)
class RecordedActivation:
    """An activation, times ``up`` where it has a gate."""

    name: Activation
    gated: bool
    compute: RowOp

    def __call__(self, rows: Tensor) -> Tensor:
        return self.compute(rows)


class RecordedOps(TorchOps):
    """Makes operations of which a graph can be made."""

    copies_weights = True  # by the session, so the embedding stays mapped as it is stored

    def __init__(self) -> None:
        super().__init__(computes_quantized=False)

    def linear(self, weight_OI: Tensor, bias_O: Tensor | None = None) -> StoredLinear:
        """Return a :class:`StoredLinear`."""
        return StoredLinear([weight_OI], bias_O)

    def stacked(self, weights: Sequence[Tensor], bias_O: Tensor | None = None) -> StoredLinear:
        """Return a :class:`StoredLinear`; its weights are not read."""
        return StoredLinear(weights, bias_O)

    def rms_norm(self, weight_E: Tensor, eps: float, offset: float) -> RecordedNorm:
        """Return a :class:`RecordedNorm`."""
        compute = super().rms_norm(weight_E, eps, offset)
        return RecordedNorm("rms", weight_E.float() + offset, None, eps, compute)

    def layer_norm(
        self, size: int, weight_E: Tensor | None, bias_E: Tensor | None, eps: float
    ) -> RecordedNorm:
        """Return a :class:`RecordedNorm`; without weights, of ones."""
        weight = torch.ones(size) if weight_E is None else weight_E.float()
        bias = None if bias_E is None else bias_E.float()
        compute = super().layer_norm(size, weight_E, bias_E, eps)
        return RecordedNorm("layer", weight, bias, eps, compute)

    def heads(
        self, query_norm_D: Tensor | None, key_norm_D: Tensor | None, eps: float, offset: float
    ) -> RecordedHeads:
        """Return :class:`RecordedHeads`."""
        query, key = (
            None if weight is None else self.rms_norm(weight, eps, offset)
            for weight in (query_norm_D, key_norm_D)
        )
        compute = super().heads(query_norm_D, key_norm_D, eps, offset)
        return RecordedHeads(query, key, compute)

    def gated(self, activation: Activation) -> RecordedActivation:
        """Return a :class:`RecordedActivation` with a gate."""
        return RecordedActivation(activation, True, super().gated(activation))

    def activation(self, name: Activation) -> RecordedActivation:
        """Return a :class:`RecordedActivation` without a gate."""
        return RecordedActivation(name, False, super().activation(name))


def recorded(operation: object, kind: type[_Op]) -> _Op:
    """Return an operation as what :class:`RecordedOps` made."""
    assert isinstance(operation, kind), operation
    return operation
