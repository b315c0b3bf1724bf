"""Weights in the order in which the kernels read them.

Shapes: O outputs, G groups of a row.
"""

# ruff: noqa: N803 - the shape of an array is the upper-case end of its name
from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from paged_backends.kernels.cpu.bindings import CodeFormat
from paged_backends.quantization.matrix import QuantizedMatrix

PANEL = 32
"""Rows of a weight that are packed together: ``PANEL`` of ``matmul.h``."""
_LARGEST_EXPONENT = 15
"""Every number below ``2 ** 15`` is in the range of float16."""
_LEAST_EXPONENT = -100
"""Least exponent of the factor: its reciprocal is in the range of float32."""


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
    """Format of a quantised weight; ``None``: it has the dtype of its argument and its result."""


def code_format(matrix: QuantizedMatrix, *, is_widened: bool) -> CodeFormat:
    """Return how a matrix is packed, with the common factor of its scales and offsets.

    The factor is a power of two, and the largest number is near the end of the range of float16: a
    scale is rounded by 1/2048 of itself at most, unless it is below ``2 ** -29`` of the largest.

    Raises:
        ValueError: a scale or an offset is not finite.
    """
    scaled = [each.numpy() for each in (matrix.scales_OG, matrix.offsets_OG) if each is not None]
    extremes = [abs(float(extreme)) for each in scaled for extreme in (each.min(), each.max())]
    if not all(map(math.isfinite, extremes)):
        raise ValueError("a scale or an offset of a quantised weight is not finite")
    largest = max(extremes)
    exponent = math.frexp(largest)[1] - _LARGEST_EXPONENT if largest else 0
    return CodeFormat(
        bits=matrix.weight_format.bits,
        group=matrix.weight_format.group_size,
        has_offsets=matrix.offsets_OG is not None,
        is_widened=is_widened,
        factor=math.ldexp(1.0, max(exponent, _LEAST_EXPONENT)),
    )


def halved(numbers_OG: Tensor, factor: float) -> Tensor:
    """Return scales or offsets [O, G] float16, without their common factor."""
    return numbers_OG.float().mul(1 / factor).half().contiguous()
