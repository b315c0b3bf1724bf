"""Quantises matrices in groups of inputs that share a scale.

The weight of the largest magnitude in a group gets the lowest code, so the step between two codes
is ``largest / 8`` in 4 bits and ``largest / 128`` in 8. A weight of the opposite sign that is as
large would need one code more than there is, and gets the highest. This is the rule of ggml's Q4_0
and of ONNX Runtime's symmetric quantiser.

Shapes: R rows of a chunk, O outputs, I inputs, G groups of a row, S group size, Y bytes of a group.
"""

# ruff: noqa: N803, N806 - the shape of a tensor is the upper-case end of its name
from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from paged_backends.quantization.code_pairs import in_pairs
from paged_backends.quantization.weight_format import WeightFormat

_CHUNK = 1 << 18
"""Weights that are converted to float32 at a time: they stay in a processor's cache."""
_SMALLEST = torch.finfo(torch.float32).tiny
"""Scales below it have no finite reciprocal: the weights of such groups become zeros."""


def quantized_chunks(
    weight_OI: Tensor, weight_format: WeightFormat
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield codes [R, G, Y] uint8 and scales [R, G] float32 of one chunk of rows after another.

    No more than a chunk of the matrix is held in float32. What is yielded is overwritten when the
    next chunk is asked for.
    """
    outputs, inputs = weight_OI.shape
    chunk = _Chunk(max(1, min(outputs, _CHUNK // inputs)), inputs, weight_format)
    for weight_RI in torch.split(weight_OI, chunk.num_rows):
        yield chunk.quantize(weight_RI)


class _Chunk:
    """Memory for a chunk, and what is done in it."""

    def __init__(self, num_rows: int, inputs: int, weight_format: WeightFormat) -> None:
        shape = num_rows, weight_format.num_groups(inputs)
        self.num_rows = num_rows
        self._weight_format = weight_format
        self._inputs = inputs
        self._values_RGS = torch.zeros(*shape, weight_format.group_size)
        self._high_RG1 = torch.empty(*shape, 1)
        self._low_RG1 = torch.empty(*shape, 1)
        self._codes_RGS = torch.empty(*shape, weight_format.group_size, dtype=torch.uint8)

    def quantize(self, weight_RI: Tensor) -> tuple[Tensor, Tensor]:
        """Return codes and scales of up to ``num_rows`` rows."""
        count, middle = len(weight_RI), self._weight_format.middle
        values_RGS, codes_RGS = self._values_RGS[:count], self._codes_RGS[:count]
        values_RGS.flatten(1)[:, : self._inputs] = weight_RI
        values_RGS.flatten(1)[:, self._inputs :] = 0
        scales_RG1 = self._scales(values_RGS)
        inverse_RG1 = torch.where(scales_RG1 == 0, 0, scales_RG1.reciprocal())
        values_RGS.mul_(inverse_RG1).round_().add_(middle).clamp_(0, 2 * middle - 1)
        codes_RGS.copy_(values_RGS)
        packed = codes_RGS if self._weight_format.bits == 8 else in_pairs(codes_RGS)
        return packed, scales_RG1.squeeze(2)

    def _scales(self, values_RGS: Tensor) -> Tensor:
        """Return [R, G, 1]: the number of largest magnitude becomes ``-middle``."""
        count = len(values_RGS)
        high_RG1 = torch.amax(values_RGS, 2, keepdim=True, out=self._high_RG1[:count])
        low_RG1 = torch.amin(values_RGS, 2, keepdim=True, out=self._low_RG1[:count])
        largest_RG1 = torch.where(high_RG1 > -low_RG1, high_RG1, low_RG1)
        scales_RG1 = largest_RG1.div_(-self._weight_format.middle)
        return torch.where(scales_RG1.abs() < _SMALLEST, 0, scales_RG1)
