"""Codes of a matrix as formats of safetensors hold them, on their way to our own form.

Shapes: O outputs, I inputs, B bytes of a row, G groups of a row as stored, N groups as they become.
"""

# ruff: noqa: N806, N815 - the shape of a tensor is the upper-case end of its name
from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from paged_backends.quantization.code_pairs import one_by_one
from paged_backends.quantization.groupwise import quantized_chunks
from paged_backends.quantization.matrix import QuantizedMatrix
from paged_backends.quantization.weight_format import Shape, WeightFormat

_SIZES: tuple[Literal[128, 64, 32, 16], ...] = (128, 64, 32, 16)
"""Of groups that we have, the largest first."""
_OTHERWISE = WeightFormat(8, 32)
"""For matrices whose groups are none of ours."""
_AT_ONCE = 1 << 20
"""Weights that are held in float32 at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedCodes:
    """A weight is ``(code - zero) * scale``, with zero and scale of its group."""

    bits: Literal[4, 8]
    shape: Shape
    bytes_OB: Tensor
    """uint8: the codes of a row, with 4 bits the first of two in the low half."""
    scales_OG: Tensor
    """float32."""
    zeros_OG: Tensor | None
    """Codes; ``None``: all are in the middle."""
    group_size: int
    """Inputs of a group; at least all of them: there is one."""
    groups_I: Tensor | None = None
    """The group of each input; ``None``: one after another."""

    def matrix(self) -> QuantizedMatrix:
        """Return the same weights, in groups of at most 128.

        Groups that are not in order, or of a size that no group of ours divides, are quantised
        again: to 8 bits, in groups of 32.
        """
        size = next((each for each in _SIZES if self._whole_group % each == 0), None)
        if size is None or self.groups_I is not None:
            return self._quantized_again()
        chosen = WeightFormat(self.bits, size)
        outputs, groups, width = chosen.codes_shape(self.shape)
        padding = groups * width - self.bytes_OB.shape[1]
        middle = 0x88 if self.bits == 4 else 0x80
        group_N = torch.arange(groups) * size // self._whole_group
        offsets_OG = self._offsets()
        return QuantizedMatrix(
            chosen,
            self.shape,
            functional.pad(self.bytes_OB, (0, padding), value=middle).view(outputs, groups, width),
            self.scales_OG[:, group_N],
            None if offsets_OG is None else offsets_OG[:, group_N],
        )

    @property
    def _whole_group(self) -> int:
        """Inputs of a group, those behind the end of a row included."""
        inputs = self.shape[1]
        return self.group_size if self.group_size < inputs else -(-inputs // 128) * 128

    @property
    def _middle(self) -> int:
        return 1 << (self.bits - 1)

    def _offsets(self) -> Tensor | None:
        """Return what is added to ``(code - middle) * scale``: [O, G], or ``None`` for nothing."""
        if self.zeros_OG is None or bool((self.zeros_OG == self._middle).all()):
            return None
        return (self._middle - self.zeros_OG.float()) * self.scales_OG

    def _quantized_again(self) -> QuantizedMatrix:
        outputs, inputs = self.shape
        codes = torch.empty(_OTHERWISE.codes_shape(self.shape), dtype=torch.uint8)
        scales = torch.empty(_OTHERWISE.scales_shape(self.shape))
        step, first = max(1, _AT_ONCE // inputs), 0
        for begin in range(0, outputs, step):
            weight_RI = self._weights(begin, begin + step)
            for some_codes, some_scales in quantized_chunks(weight_RI, _OTHERWISE):
                end = first + len(some_codes)
                codes[first:end], scales[first:end] = some_codes, some_scales
                first = end
        return QuantizedMatrix(_OTHERWISE, self.shape, codes, scales)

    def _weights(self, begin: int, end: int) -> Tensor:
        """Return the weights of some rows, in float32."""
        inputs = self.shape[1]
        group_I = self.groups_I
        if group_I is None:
            group_I = torch.arange(inputs) // self._whole_group
        bytes_RB = self.bytes_OB[begin:end]
        codes_RI = (one_by_one(bytes_RB) if self.bits == 4 else bytes_RB)[:, :inputs].float()
        zeros = self._middle if self.zeros_OG is None else self.zeros_OG[begin:end, group_I]
        return (codes_RI - zeros) * self.scales_OG[begin:end, group_I]
