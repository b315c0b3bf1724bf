"""Numbers in E4M3 (see :mod:`paged_backends.attention.float8`) to and from float32, in Triton.

They are written by computing with their bits. Many more are read than written: where ``NATIVE``,
by the instructions for it of GPUs of compute capability 8.9 or newer.
"""

# ruff: noqa: N803, N806 - constants are upper-case, and the shape of an array is the end of its name
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def scale_bytes(row_ND):
    """Return the bytes [N] int32 of the scales of rows [N, D] float32."""
    size_ND = tl.where(row_ND == row_ND, tl.abs(row_ND), 0.0)
    bits_N = tl.max(size_ND, 1).to(tl.int32, bitcast=True)
    # the greatest number is 1.75 * 2^8
    byte_N = (bits_N >> 23) - 8 + ((bits_N & 0x7FFFFF) > 0x600000).to(tl.int32)
    return tl.maximum(byte_N, 1)


@triton.jit
def power_of_two(byte):
    """Return ``2^(byte - 127)`` in float32, of bytes 1 .. 254 in any integer type."""
    return (byte.to(tl.int32) << 23).to(tl.float32, bitcast=True)


@triton.jit
def encode(number):
    """Return float32 numbers of at most 448 as bytes, to the nearest, ties to even; NaN what is
    not finite."""
    bits = number.to(tl.int32, bitcast=True)
    size_bits = bits & 0x7FFFFFFF
    # below 2^-6 numbers are multiples of 2^-9, as are the floats from 2^14 to 2^15
    small = (tl.abs(number) + 16384.0).to(tl.int32, bitcast=True) - 0x46800000
    large = ((size_bits + 0x7FFFF + ((size_bits >> 20) & 1)) >> 20) - (120 << 3)
    magnitude = tl.where(size_bits < (121 << 23), small, large)
    byte = magnitude | ((bits >> 24) & 0x80)
    return tl.where(size_bits < 0x7F800000, byte, 0x7F).to(tl.uint8)


@triton.jit
def decode(byte, TYPE: tl.constexpr, NATIVE: tl.constexpr):
    """Return what bytes stand for, in ``TYPE``, which is exact in all floating-point types."""
    if NATIVE:
        number = byte.to(tl.float8e4nv, bitcast=True).to(TYPE)
    else:
        # in a float16 of the same bits, exponents are 8 too low
        bits = byte.to(tl.uint16)
        half = ((bits & 0x80) << 8) | ((bits & 0x7F) << 7)
        grown = half.to(tl.float16, bitcast=True) * 256.0
        number = tl.where((bits & 0x7F) == 0x7F, float("nan"), grown).to(TYPE)
    return number
