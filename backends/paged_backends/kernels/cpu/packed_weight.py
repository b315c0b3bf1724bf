"""Weights in the order in which the kernels read them.

Shapes: O outputs, G groups of a row.
"""

# ruff: noqa: N803 - the shape of a tensor is the upper-case end of its name
from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from paged_backends.kernels.cpu.structs import CodeFormat
from paged_backends.quantization.weight_format import WeightFormat

_LARGEST_EXPONENT = 15
"""Every number below ``2 ** 15`` is in the range of float16."""
_LEAST_EXPONENT = -100
"""Of the factor: its reciprocal is in the range of float32."""


@dataclass(frozen=True, slots=True, eq=False)
class PackedWeight:
    """A packed weight, and its bias."""

    data: Tensor
    """Numbers, or uint8 if it is quantised."""
    width: int
    """O, the outputs."""
    columns: int
    """I, the inputs."""
    bias: Tensor | None
    """[O] float32."""
    codes: CodeFormat | None = None
    """Of a quantised weight; ``None``: it has the dtype of its argument and its result."""


def half_scales(
    weight_format: WeightFormat, scales_OG: Tensor, offsets_OG: Tensor | None
) -> tuple[CodeFormat, Tensor, Tensor | None]:
    """Return scales and offsets [O, G] float16, and the format with their common factor.

    The factor is a power of two, and the largest number is near the end of the range of float16: a
    scale is rounded by 1/2048 of itself at most, unless it is below ``2 ** -29`` of the largest.
    """
    largest = max(float(each.abs().max()) for each in (scales_OG, offsets_OG) if each is not None)
    exponent = math.frexp(largest)[1] - _LARGEST_EXPONENT if largest else 0
    exponent = max(exponent, _LEAST_EXPONENT)
    factor = math.ldexp(1.0, exponent)
    chosen = CodeFormat(
        bits=weight_format.bits,
        group=weight_format.group_size,
        has_offsets=offsets_OG is not None,
        factor=factor,
    )

    def halved(numbers_OG: Tensor) -> Tensor:
        return numbers_OG.float().mul(1 / factor).half().contiguous()

    offsets = None if offsets_OG is None else halved(offsets_OG)
    return chosen, halved(scales_OG), offsets
