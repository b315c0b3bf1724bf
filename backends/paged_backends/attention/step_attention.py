"""Attention of all layers in one step, as an executor hands it to a runner."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from paged_core.interfaces.attention import LayerAttention


class StepAttention:
    """Called as ``attend(layer, query, key, value)``.

    Its parts are there for a runner that hands a whole stack of layers to a kernel.
    """

    __slots__ = ("layers", "plan")

    def __init__(self, layers: Sequence[LayerAttention], plan: Any) -> None:
        """
        Args:
            layers: bound once and for all.
            plan: of this step.
        """
        self.layers = layers
        self.plan = plan

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Return what attention of ``layer`` returns."""
        return self.layers[layer].forward(query, key, value, self.plan)
