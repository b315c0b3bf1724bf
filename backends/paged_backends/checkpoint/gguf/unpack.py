"""Takes blocks apart, into codes and the scales of their groups, for each type of block.

The layouts are those of ggml (``ggml-common.h`` and ``ggml-quants.c``): a block begins with or ends
in its scales, in float16; what has 4 bits or fewer lies in parts, of which byte ``i`` holds numbers
that are 16, 32 or 64 apart.

Shapes: N blocks, B bytes of a block, and L codes of a block; X any number of bytes; G groups of a
block that have a scale of their own.
"""

# ruff: noqa: N803, N815 - the shape of an array is the upper-case end of its name
from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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

    def numbers(self) -> Floats:
        """Return [N, L]."""
        groups = self.codes_NL.reshape(*self.scales_NG.shape, -1).astype(np.float32)
        groups *= self.scales_NG[:, :, None]
        if self.offsets_NG is not None:
            groups += self.offsets_NG[:, :, None]
        return groups.reshape(self.codes_NL.shape)


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


UNPACK: Mapping[str, Callable[[Bytes], Unpacked]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}
"""By the name of the type: what takes blocks [N, B] apart."""
