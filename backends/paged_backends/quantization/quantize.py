"""Quantisation of a model's matrices, in groups of inputs that share a scale, in threads.

The weight of the largest magnitude in a group gets the lowest code, so the step between two codes
is ``largest / 8`` in 4 bits and ``largest / 128`` in 8. A weight of the opposite sign that is as
large would need one code more than there is, and gets the highest. This is the rule of ggml's Q4_0
and of ONNX Runtime's symmetric quantiser.

Shapes: R rows of a chunk, O outputs, I inputs, G groups of a row, S group size, Y bytes of a group.
"""

# ruff: noqa: N803, N806 - the shape of an array is the upper-case end of its name
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor

from paged_backends.quantization.matrix import QuantizedMatrix, Rows, in_pairs, shape_of
from paged_backends.quantization.weight_format import WeightFormat

_Task = TypeVar("_Task")


def in_threads(run: Callable[[_Task], None], tasks: Iterable[_Task]) -> None:
    """Call ``run`` for every task, in as many threads as PyTorch has.

    Inside, PyTorch uses one thread: operations on what fits into a processor's cache, divided among
    OpenMP's threads, are several times slower where other processes use the same processors.

    Raises:
        Exception: the first that ``run`` raised; tasks that were not begun are dropped.
    """

    def run_one(task: _Task) -> None:
        with torch.inference_mode():  # as tensors may be that were made by the thread that waits
            run(task)

    threads = torch.get_num_threads()
    pool = ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))
    try:
        for _ in pool.map(run_one, tasks):
            pass
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(threads)  # of threads that start later, too


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
