"""Quantises the matrices of a model, in several threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from paged_backends.quantization.groupwise import quantized_chunks
from paged_backends.quantization.matrix import QuantizedMatrix, Rows, shape_of
from paged_backends.quantization.weight_format import WeightFormat
from paged_backends.quantization.workers import in_threads

_TASK = 1 << 24
"""Weights that a thread quantises before it takes others."""

Put = Callable[[int, int, Tensor, Tensor], None]
"""Stores codes and scales, given the number of their matrix and their first row there."""


def quantize_into(
    put: Put,
    matrices: Sequence[Rows],
    weight_format: WeightFormat,
    *,
    release: Callable[[], None] = lambda: None,
) -> None:
    """Quantise all matrices, chunk by chunk.

    Args:
        put: called from several threads.
        release: called now and then; it may drop the memory of pages that were read.

    Raises:
        OSError: ``put`` raised it; the other chunks are not quantised any more.
    """

    def run(task: tuple[int, int, Tensor]) -> None:
        index, first, part = task
        for codes, scales in quantized_chunks(part, weight_format):
            put(index, first, codes, scales)
            first += len(codes)
        release()

    in_threads(run, _tasks(matrices))


def quantize(
    matrices: Sequence[Rows],
    weight_format: WeightFormat,
    *,
    release: Callable[[], None] = lambda: None,
) -> list[QuantizedMatrix]:
    """Return all matrices quantised, in new memory; for ``release`` see :func:`quantize_into`."""
    made = []
    for rows in matrices:
        shape = shape_of(rows)
        codes = torch.empty(weight_format.codes_shape(shape), dtype=torch.uint8)
        made.append(
            QuantizedMatrix(
                weight_format, shape, codes, torch.empty(weight_format.scales_shape(shape))
            )
        )

    def put(index: int, first: int, codes: Tensor, scales: Tensor) -> None:
        end = first + len(codes)
        made[index].codes_OGY[first:end] = codes
        made[index].scales_OG[first:end] = scales

    quantize_into(put, matrices, weight_format, release=release)
    return made


def _tasks(matrices: Sequence[Rows]) -> Iterator[tuple[int, int, Tensor]]:
    """Yield the number of a matrix, a first row and some rows from there."""
    for index, rows in enumerate(matrices):
        first = 0
        for part in rows:
            for some in torch.split(part, max(1, _TASK // part.shape[1])):
                yield index, first, some
                first += len(some)
