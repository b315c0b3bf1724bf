"""The tensors of a GGUF file, mapped into memory, and the codes in blocks of each type.

The package ``gguf`` dequantises blocks. It does not give their codes, which stay quantised in our
kernels. The layouts are those of ggml (``ggml-common.h`` and ``ggml-quants.c``): a block begins
with or ends in its scales, in float16; what has 4 bits or fewer lies in parts, of which byte ``i``
holds numbers that are 16, 32 or 64 apart.

Shapes: N blocks, B bytes of a block or a row, L codes of a block; X any number of bytes; G groups
of a block that have a scale of their own; R rows.
"""

# ruff: noqa: N803, N806, N815 - the shape of an array is the upper-case end of its name
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paged_backends.checkpoint.gguf.architecture import DIVISORS, architecture_of
from paged_backends.checkpoint.gguf.header import BlockType, GgufHeader
from paged_backends.checkpoint.tensor_files import WHOLE, MappedFile, Part, own_pages
from paged_backends.quantization.matrix import QuantizedMatrix, in_pairs
from paged_backends.quantization.quantize import in_threads
from paged_backends.quantization.weight_format import WeightFormat

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
Integers = NDArray[np.uint8] | NDArray[np.int8]


@dataclass(frozen=True, slots=True)
class Unpacked:
    """Blocks of one type: a number is ``code * scale + offset``, with those of its group."""

    codes_NL: Integers
    """int8 where zero is in their middle, or else uint8."""
    scales_NG: Floats
    offsets_NG: Floats | None = None
    """``None``: all are 0."""


def _half(blocks_NB: Bytes, begin: int) -> Floats:
    """Return the float16 at byte ``begin`` of every block: [N, 1]."""
    return blocks_NB[:, begin : begin + 2].copy().view("<f2").astype(np.float32)


def _bits(bytes_NX: Bytes, width: int) -> Bytes:
    """Return codes of ``width`` bits, [N, 8 / width * X]: first the lowest of all bytes."""
    mask = np.uint8((1 << width) - 1)
    parts = [bytes_NX >> np.uint8(shift) & mask for shift in range(0, 8, width)]
    return np.concatenate(parts, axis=1)


def _in_parts(bytes_NX: Bytes, length: int, width: int) -> Bytes:
    """Return codes of ``width`` bits, [N, 8 / width * X], of parts of ``length`` bytes each."""
    return _bits(bytes_NX.reshape(-1, length), width).reshape(len(bytes_NX), -1)


def _q8_0(blocks_NB: Bytes) -> Unpacked:
    return Unpacked(blocks_NB[:, 2:].view(np.int8), _half(blocks_NB, 0))


def _q4_0(blocks_NB: Bytes) -> Unpacked:
    return Unpacked(_bits(blocks_NB[:, 2:], 4).view(np.int8) - np.int8(8), _half(blocks_NB, 0))


def _q4_1(blocks_NB: Bytes) -> Unpacked:
    return Unpacked(_bits(blocks_NB[:, 4:], 4), _half(blocks_NB, 0), _half(blocks_NB, 2))


def _five_bits(blocks_NB: Bytes, begin: int) -> Bytes:
    """Return 32 numbers of which the fifth bits come first, in four bytes, in order."""
    fifth = np.unpackbits(blocks_NB[:, begin : begin + 4], axis=1, bitorder="little")
    return _bits(blocks_NB[:, begin + 4 :], 4) | fifth << np.uint8(4)


def _q5_0(blocks_NB: Bytes) -> Unpacked:
    return Unpacked(_five_bits(blocks_NB, 2).view(np.int8) - np.int8(16), _half(blocks_NB, 0))


def _q5_1(blocks_NB: Bytes) -> Unpacked:
    return Unpacked(_five_bits(blocks_NB, 4), _half(blocks_NB, 0), _half(blocks_NB, 2))


def _q2_k(blocks_NB: Bytes) -> Unpacked:
    low, high = blocks_NB[:, :16] & np.uint8(15), blocks_NB[:, :16] >> np.uint8(4)
    numbers = _in_parts(blocks_NB[:, 16:80], 32, 2)
    return Unpacked(numbers, low * _half(blocks_NB, 80), high * -_half(blocks_NB, 82))


def _q3_k(blocks_NB: Bytes) -> Unpacked:
    packed = blocks_NB[:, 96:108]
    scales = _bits(packed[:, :8], 4) | _bits(packed[:, 8:], 2) << np.uint8(4)
    third = _bits(blocks_NB[:, :32], 1) << np.uint8(2)
    numbers = (_in_parts(blocks_NB[:, 32:96], 32, 2) | third).view(np.int8) - np.int8(4)
    return Unpacked(numbers, (scales.view(np.int8) - np.int8(32)) * _half(blocks_NB, 108))


def _scales_and_offsets(blocks_NB: Bytes) -> tuple[Floats, Floats]:
    """Return eight scales and eight offsets [N, 8], of six bits each, from bytes 4 to 16.

    The first four of both are the low bits of eight bytes; of the others, the low bits are in the
    last four bytes and the two highest in those eight. They are multiplied by the two float16 in
    front of them; offsets are what is subtracted there.
    """
    first, last = blocks_NB[:, 4:12], blocks_NB[:, 12:16]
    low, high = first & np.uint8(63), first >> np.uint8(6) << np.uint8(4)
    scales = np.concatenate([low[:, :4], last & np.uint8(15) | high[:, :4]], axis=1)
    offsets = np.concatenate([low[:, 4:], last >> np.uint8(4) | high[:, 4:]], axis=1)
    return scales * _half(blocks_NB, 0), offsets * -_half(blocks_NB, 2)


def _q4_k(blocks_NB: Bytes) -> Unpacked:
    return Unpacked(_in_parts(blocks_NB[:, 16:], 32, 4), *_scales_and_offsets(blocks_NB))


def _q5_k(blocks_NB: Bytes) -> Unpacked:
    fifth = _bits(blocks_NB[:, 16:48], 1) << np.uint8(4)
    numbers = _in_parts(blocks_NB[:, 48:], 32, 4) | fifth
    return Unpacked(numbers, *_scales_and_offsets(blocks_NB))


def _q6_k(blocks_NB: Bytes) -> Unpacked:
    high = _in_parts(blocks_NB[:, 128:192], 32, 2) << np.uint8(4)
    numbers = (_in_parts(blocks_NB[:, :128], 64, 4) | high).view(np.int8) - np.int8(32)
    return Unpacked(numbers, blocks_NB[:, 192:208].view(np.int8) * _half(blocks_NB, 208))


_AT_ONCE = 1 << 17
"""Numbers that fit the nearer caches with what is computed on the way."""

QUANTIZED: Mapping[str, tuple[Callable[[Bytes], Unpacked], WeightFormat]] = {
    "Q4_0": (_q4_0, WeightFormat(4, 32)),
    "Q4_1": (_q4_1, WeightFormat(4, 32)),
    "Q5_0": (_q5_0, WeightFormat(8, 32)),
    "Q5_1": (_q5_1, WeightFormat(8, 32)),
    "Q8_0": (_q8_0, WeightFormat(8, 32)),
    "Q2_K": (_q2_k, WeightFormat(4, 16)),
    "Q3_K": (_q3_k, WeightFormat(4, 16)),
    "Q4_K": (_q4_k, WeightFormat(4, 32)),
    "Q5_K": (_q5_k, WeightFormat(8, 32)),
    "Q6_K": (_q6_k, WeightFormat(8, 16)),
}
"""By the name of a type: what takes its blocks [N, B] apart, and what holds their codes."""


@dataclass(frozen=True, slots=True)
class QuantizedTensor:
    """Rows of blocks of one type; a view, which is only to be read."""

    block_type: BlockType
    shape: tuple[int, ...]
    """Sides of the tensor of numbers; all but the last are its rows."""
    bytes_RB: Tensor
    """uint8."""

    def rows(self, indices: Tensor) -> QuantizedTensor:
        """Return some of the rows of a matrix, in an order, copied."""
        shape = (len(indices), self.shape[-1])
        return replace(self, shape=shape, bytes_RB=self.bytes_RB[indices])

    def part(self, part: Part) -> QuantizedTensor:
        """Return a part of a matrix, as a view; its columns begin and end with a block."""
        begin, end, _ = part.columns.indices(self.shape[-1])
        of_row = slice(
            *(side // self.block_type.length * self.block_type.num_bytes for side in (begin, end))
        )
        bytes_RB = self.bytes_RB[part.rows, of_row]
        return replace(self, shape=(len(bytes_RB), end - begin), bytes_RB=bytes_RB)

    def dequantize(self, dtype: torch.dtype) -> Tensor:
        """Return the numbers, computed in float32 and rounded to ``dtype``.

        Beside what is returned, a few megabytes are allocated.
        """
        from gguf import GGMLQuantizationType
        from gguf.quants import dequantize

        numbers, kind = own_pages(self.shape, dtype), GGMLQuantizationType[self.block_type.name]
        parts = numbers.view(-1, self.block_type.length)

        def convert(first: int, end: int, blocks_NB: Bytes) -> None:
            found = dequantize(blocks_NB.reshape(1, -1), kind)  # one row: many are taken one by one
            parts[first:end] = torch.from_numpy(found).view(parts[first:end].shape)

        self._in_parts(convert)
        return numbers

    def matrix(self) -> QuantizedMatrix:
        """Return a matrix with its codes, as they are or in 8 bits: the numbers are the same.

        Where codes of 4 bits count from 0, and not from their middle, the offset of a group is
        rounded to float32 once more.
        """
        outputs, inputs = self.shape
        unpack, chosen = QUANTIZED[self.block_type.name]
        shape = outputs, inputs
        codes = torch.empty(chosen.codes_shape(shape), dtype=torch.uint8)
        scales = torch.empty(chosen.scales_shape(shape))
        offsets: Tensor | None = None
        if unpack(np.zeros((1, self.block_type.num_bytes), np.uint8)).offsets_NG is not None:
            offsets = torch.empty_like(scales)
        groups = self.block_type.length // chosen.group_size
        of_codes, of_scales = codes.view(-1, groups, codes.shape[2]), scales.view(-1, groups)

        def convert(first: int, end: int, blocks_NB: Bytes) -> None:
            part = unpack(blocks_NB)
            of_codes[first:end] = _stored_codes(part, chosen).view(end - first, groups, -1)
            of_scales[first:end] = torch.from_numpy(part.scales_NG)
            if offsets is not None:
                offsets.view(-1, groups)[first:end] = _stored_offsets(part, chosen)

        self._in_parts(convert)
        return QuantizedMatrix(chosen, shape, codes, scales, offsets)

    def _blocks(self) -> Tensor:
        return self.bytes_RB.reshape(-1, self.block_type.num_bytes)

    def _in_parts(self, convert: Callable[[int, int, Bytes], None]) -> None:
        """Call ``convert`` with the first block of a part, its end, and its blocks, in threads."""
        blocks = self._blocks()
        step = _AT_ONCE // self.block_type.length

        def run(first: int) -> None:
            part = blocks[first : first + step]
            with np.errstate(all="ignore"):  # a scale may be infinite
                convert(first, first + len(part), part.numpy())

        firsts = range(0, len(blocks), step)
        if len(firsts) > 1:
            in_threads(run, firsts)
        elif firsts:
            run(0)


def _counts_from_zero(part: Unpacked, chosen: WeightFormat) -> bool:
    """Return whether codes are stored as they are; others are moved to the middle of theirs."""
    return chosen.bits == 4 and part.codes_NL.dtype == np.uint8


def _stored_codes(part: Unpacked, chosen: WeightFormat) -> Tensor:
    """Return [N, Y]."""
    codes_NL = torch.from_numpy(part.codes_NL.view(np.uint8))
    if not _counts_from_zero(part, chosen):
        codes_NL = codes_NL + chosen.middle  # modulo 256, as the numbers of two's complement
    return in_pairs(codes_NL) if chosen.bits == 4 else codes_NL


def _stored_offsets(part: Unpacked, chosen: WeightFormat) -> Tensor:
    """Return [N, G]."""
    assert part.offsets_NG is not None
    if not _counts_from_zero(part, chosen):
        return torch.from_numpy(part.offsets_NG)
    return torch.from_numpy(part.offsets_NG + chosen.middle * part.scales_NG)


_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


class MappedGguf(MappedFile):
    """Tensors by name, with the methods of a safetensors file.

    They have GGUF's names, and the form that transformers gives them: see :mod:`.architecture` for
    what differs.
    """

    def __init__(self, header: GgufHeader, config: Mapping[str, Any], dtype: torch.dtype) -> None:
        """Map a file.

        Args:
            config: what it says as ``config.json``.
            dtype: what quantised tensors become.
        """
        self._tensors = {name: each for name, each in header.tensors.items() if name != DIVISORS}
        self._config = config
        self._dtype = dtype
        self._architecture = architecture_of(header)
        super().__init__(header.path)

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    @property
    def is_quantized(self) -> bool:
        """Return whether any matrix is quantised."""
        return any(each.is_quantized_matrix for each in self._tensors.values())

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of one tensor."""
        return self._tensors[name].shape

    def dtype(self, name: str) -> torch.dtype:
        """Return the dtype of one tensor, as :meth:`tensor` returns it."""
        return _DTYPES.get(self._tensors[name].block_type.name, self._dtype)

    def tensor(self, name: str, part: Part = WHOLE) -> Tensor:
        """Return one tensor; it is only to be read."""
        stored, shape = self._stored(name), self.shape(name)
        if self.is_quantized_matrix(name):
            tensor = stored.part(part).dequantize(self._dtype)
        elif stored.block_type.is_quantized:
            tensor = part.of(stored.dequantize(self._dtype))
        else:
            tensor = part.of(stored.bytes_RB.view(self.dtype(name)).view(shape))
        if self._architecture.norm_offset and _kind(name).endswith("norm"):
            return tensor - self._architecture.norm_offset
        return self._in_order(name, tensor)

    def is_quantized_matrix(self, name: str) -> bool:
        """Return whether a tensor is a matrix, and quantised."""
        return self._tensors[name].is_quantized_matrix

    def blocks(self, name: str, part: Part = WHOLE) -> QuantizedTensor:
        """Return a matrix as it is quantised."""
        stored = self._stored(name).part(part)
        return replace(stored, bytes_RB=self._in_order(name, stored.bytes_RB))

    def _in_order(self, name: str, rows: Tensor) -> Tensor:
        """Return the rows of a tensor, which are of whole heads, in the order that transformers
        has."""
        kind = _kind(name)
        if not self._architecture.interleaved or kind not in ("attn_q", "attn_k"):
            return rows
        field = "num_attention_heads" if kind == "attn_q" else "num_key_value_heads"
        num_rows, num_heads = self.shape(name)[0], self._config[field]
        if num_rows % (2 * num_heads):
            return rows  # of another shape than the configuration says, and refused for that
        return _in_halves(rows, num_rows // num_heads)

    def _stored(self, name: str) -> QuantizedTensor:
        """Return a tensor as the file holds it."""
        stored = self._tensors[name]
        count = prod(stored.shape[:-1])
        rows = self.view(stored.begin, (count, stored.num_bytes // count), torch.uint8)
        return QuantizedTensor(stored.block_type, stored.shape, rows)


def _kind(name: str) -> str:
    """Return the last part of a module's name."""
    return name.rpartition(".")[0].rpartition(".")[2]


def _in_halves(rows: Tensor, width: int) -> Tensor:
    """Return rows in another order: in each head, first those at even places, then the others."""
    halves = rows.reshape(-1, width // 2, 2, *rows.shape[1:])
    return halves.transpose(1, 2).reshape(rows.shape)
