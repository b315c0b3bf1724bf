"""The format of a quantised matrix: bits of a weight, and one scale for each group of inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Shape = tuple[int, int]
"""Outputs and inputs of a matrix."""


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """Groupwise quantisation of the weights of a linear layer.

    A row, the weights of one output, is divided into groups of ``group_size`` inputs; the last one
    is filled with zeros. A weight is ``(code - middle) * scale`` of its group, plus an offset where
    a matrix has them.
    """

    bits: Literal[4, 8]
    group_size: Literal[16, 32, 64, 128]

    @property
    def name(self) -> str:
        """As in ``int4-g32``."""
        return f"int{self.bits}-g{self.group_size}"

    def bytes_per_weight(self, scale_bytes: int) -> float:
        """Return what a weight takes, with its part of the scale of its group."""
        return self.bits / 8 + scale_bytes / self.group_size

    @property
    def middle(self) -> int:
        """The code of zero."""
        return 1 << (self.bits - 1)

    def num_groups(self, inputs: int) -> int:
        """Return the groups of one row."""
        return -(-inputs // self.group_size)

    def codes_shape(self, shape: Shape) -> tuple[int, int, int]:
        """Return the shape of a matrix's codes, uint8: outputs, groups, bytes of a group.

        With 4 bits, a byte holds two codes, the first in its low half. That is the layout of ONNX
        Runtime's ``MatMulNBits``.
        """
        outputs, inputs = shape
        return outputs, self.num_groups(inputs), self.group_size * self.bits // 8

    def scales_shape(self, shape: Shape) -> tuple[int, int]:
        """Return the shape of a matrix's scales, float32: outputs, groups."""
        outputs, inputs = shape
        return outputs, self.num_groups(inputs)
