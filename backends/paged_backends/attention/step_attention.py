"""Attention of all layers in one step: the ``attend`` that runners are given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from paged_core.interfaces.attention import LayerAttention


class StepAttention:
    """Called as ``attend(layer, query, key, value)``.

    It is a :class:`~paged_core.interfaces.runner.SupportsFusedLayers`.
    """

    __slots__ = ("layers", "plan")

    def __init__(self, layers: Sequence[LayerAttention], plan: Any) -> None:
        """
        Args:
            layers: the bound layers, the same list in every step.
            plan: of this step.
        """
        self.layers = layers
        self.plan = plan

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Return the attention of ``layer``."""
        return self.layers[layer].forward(query, key, value, self.plan)
