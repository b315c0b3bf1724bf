"""The tensors of one linear layer as formats hold them, and its codes on their way to our form.

Shapes: R rows, W integers of a row, O outputs, I inputs, B bytes of a row, C codes of a row, G
groups of a row as stored, N groups as they become.
"""

# ruff: noqa: N803, N806, N815 - the shape of an array is the upper-case end of its name
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import lcm
from typing import Literal

import regex
import torch
from torch import Tensor
from torch.nn import functional

from paged_backends.checkpoint.json_file import damaged
from paged_backends.checkpoint.tensor_files import SafetensorsFile
from paged_backends.quantization.matrix import QuantizedMatrix, one_by_one
from paged_backends.quantization.quantize import quantized_chunks
from paged_backends.quantization.weight_format import Shape, WeightFormat
from paged_core.errors import CheckpointError


def in_bytes(packed_RW: Tensor) -> Tensor:
    """Return the bytes [R, B] of int32, the lowest first."""
    return packed_RW.contiguous().view(torch.uint8)


def unpacked_rows(packed_RW: Tensor, bits: int) -> Tensor:
    """Return codes [R, C] uint8."""
    return one_by_one(in_bytes(packed_RW)) if bits == 4 else in_bytes(packed_RW)


def covering(some: slice, count: int, in_one: int) -> tuple[slice, slice]:
    """Return which elements of ``in_one`` codes each hold some of ``count`` codes, and where these
    lie among the codes of those elements."""
    begin, end, _ = some.indices(count)
    first = begin // in_one
    return slice(first, -(-end // in_one)), slice(begin - first * in_one, end - first * in_one)


_SIZES: tuple[Literal[128, 64, 32, 16], ...] = (128, 64, 32, 16)
"""Sizes of groups that the kernels have, the largest first."""
_OTHERWISE = WeightFormat(8, 32)
"""For matrices whose groups are none of ours."""
_AT_ONCE = 1 << 20
"""Weights that are held in float32 at a time."""


def unit_of(bits: int, inputs: int, group_size: int, *, in_order: bool) -> int:
    """Return how many of the inputs of a matrix cannot be cut apart, for all parts to become the
    same codes as in the whole matrix; groups are those of :class:`PackedCodes`."""
    if not in_order:
        return _OTHERWISE.group_size
    if group_size >= inputs:
        return 32 // bits  # one scale for all; codes lie in elements of 32 bits
    again = all(group_size % size for size in _SIZES)
    return lcm(group_size, _OTHERWISE.group_size) if again else group_size


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


_MATCHING = 1.0
"""Seconds that a regular expression of a checkpoint may take for one name."""


def matches(pattern: str, name: str) -> bool:
    """Return whether the name of a module begins as a regular expression of a checkpoint says.

    Raises:
        CheckpointError: it is none, or takes too long.
    """
    try:
        return regex.match(pattern, name, timeout=_MATCHING) is not None
    except (regex.error, TimeoutError) as error:
        raise damaged(
            f"the quantization_config names modules by {pattern[:100]!r}, which is no regular "
            f"expression that can be matched ({error})"
        ) from None


def contradiction(name: str, field: str, reason: str) -> CheckpointError:
    """Return the error for a quantised module that the configuration says is none."""
    return damaged(f"{name} is quantised, and {field} in quantization_config {reason}")


TensorShape = tuple[int, ...]


class StoredModule:
    """Tensors by the last part of their names."""

    def __init__(self, name: str, files: Mapping[str, SafetensorsFile]) -> None:
        """Take them from ``files``, the file of each tensor by its whole name."""
        self.name = name
        self._files = files
        self.taken: set[str] = set()
        """Whole names of those that were read."""

    def has(self, part: str) -> bool:
        """Return whether there is a tensor of this name."""
        return f"{self.name}.{part}" in self._files

    def shape(self, part: str) -> TensorShape:
        """Return the shape of a tensor that is there."""
        return self._file(part).shape(f"{self.name}.{part}")

    def dtype(self, part: str) -> torch.dtype:
        """Return the dtype of a tensor. Raises :class:`CheckpointError` if it is missing."""
        return self._file(part).stored(f"{self.name}.{part}").dtype

    def skip_equal(self, part: str, *values: int) -> None:
        """Say that a tensor is known, if it is there and all of its numbers are one of these."""
        if not self.has(part):
            return
        stored = self._file(part).stored(f"{self.name}.{part}")
        if any(bool((stored == value).all()) for value in values):
            self.taken.add(f"{self.name}.{part}")

    def integers(self, part: str, shape: TensorShape, *dtypes: torch.dtype) -> Tensor:
        """Return a tensor of integers, of 32 bits unless ``dtypes`` are given; only to be read.

        Raises:
            CheckpointError: it is missing, or of another shape or dtype.
        """
        return self._tensor(part, shape, dtypes or (torch.int32,))

    def numbers(self, part: str, shape: TensorShape, *some: slice) -> Tensor:
        """Return some of a tensor of floating-point numbers, in float32; ``shape`` is that of all.
        Raises as :meth:`integers`."""
        whole = self._tensor(part, shape, (torch.float16, torch.bfloat16, torch.float32))
        return whole[some].float()

    def _tensor(self, part: str, shape: TensorShape, dtypes: tuple[torch.dtype, ...]) -> Tensor:
        name, file = f"{self.name}.{part}", self._file(part)
        tensor = file.stored(name)
        if tensor.dtype not in dtypes or tensor.shape != shape:
            allowed = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
            raise CheckpointError(
                f"{name} in {file.path} is {str(tensor.dtype).removeprefix('torch.')} of the shape "
                f"{tuple(tensor.shape)}, and its matrix needs {allowed} of the shape {shape}; the "
                "configuration and the weights do not belong together"
            )
        self.taken.add(name)
        return tensor

    def _file(self, part: str) -> SafetensorsFile:
        file = self._files.get(f"{self.name}.{part}")
        if file is None:
            raise damaged(f"the quantised weights of {self.name} lack {part}")
        return file

    def wrong(self, part: str, reason: str) -> CheckpointError:
        """Return the error for a tensor whose numbers make no sense."""
        name = f"{self.name}.{part}"
        return damaged(f"{name} in {self._files[name].path} {reason}")

    def groups(self, part: str, inputs: int, size: int, num_groups: int) -> Tensor | None:
        """Return the group of each input, int64, or ``None`` if they follow one another.

        Raises:
            CheckpointError: as :meth:`integers`, or one is not among ``num_groups``.
        """
        groups = self.integers(part, (inputs,)).long()
        if bool((groups < 0).any()) or bool((groups >= num_groups).any()):
            raise self.wrong(part, f"names groups that are not among its {num_groups}")
        return None if torch.equal(groups, torch.arange(inputs) // size) else groups
