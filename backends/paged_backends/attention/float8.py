"""Keys and values as 8-bit floating-point numbers, for ``kv_cache_dtype: fp8_e4m3``.

A row, the key or value of one token and head, is stored as numbers in E4M3 (OCP 8-bit floating
point: 4 bits of exponent, 3 of mantissa, no infinities, 448 at most) times a power of two ``2^e``:
the smallest that makes all of the row fit. ``e + 127`` is stored as a byte, so ``byte << 23`` are
the bits of the scale in float32. The relative error of a number is 1/16 at most, unless it is below
``2^-13`` of the greatest of its row.

A scale per row needs no calibration, clips nothing, and does not depend on what else is cached.

Shapes: N rows, D numbers of each.
"""

# ruff: noqa: N803, N806 - the shape of an array is the upper-case end of its name
from __future__ import annotations

import torch
from torch import Tensor

_MANTISSA_OF_448 = 0x600000
_EXPONENT_OF_448 = 8


def pack(rows_ND: Tensor) -> Tensor:
    """Return the rows as bytes [N, D + 1], the last of which says the scale.

    What is not finite becomes NaN.
    """
    rows_ND = rows_ND.float()
    greatest_N = rows_ND.abs().amax(-1).nan_to_num(nan=0.0)
    scale_N = _scale_bytes(greatest_N)
    inverse_N = ((254 - scale_N) << 23).view(torch.float32)
    scaled_ND = rows_ND * inverse_N[..., None]
    numbers_ND = scaled_ND.to(torch.float8_e4m3fn)
    # infinities are saturated by some devices
    numbers_ND = numbers_ND.view(torch.uint8).masked_fill_(~scaled_ND.isfinite(), 0x7F)
    return torch.cat([numbers_ND, scale_N[..., None].to(torch.uint8)], -1)


def unpack(bytes_NB: Tensor) -> Tensor:
    """Return the rows [N, D] float32 of what :func:`pack` returned."""
    scale_N = (bytes_NB[..., -1].to(torch.int32) << 23).view(torch.float32)
    numbers_ND = bytes_NB[..., :-1].contiguous().view(torch.float8_e4m3fn).float()
    return numbers_ND * scale_N[..., None]


def _scale_bytes(greatest_N: Tensor) -> Tensor:
    """Return ``e + 127`` [N] int32 for rows whose greatest magnitudes are given [N] float32."""
    bits_N = greatest_N.contiguous().view(torch.int32)
    exponent_N = (bits_N >> 23) - _EXPONENT_OF_448
    exponent_N += ((bits_N & 0x7FFFFF) > _MANTISSA_OF_448).int()
    return exponent_N.clamp_(min=1)
