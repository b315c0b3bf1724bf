"""Arguments of the kernels: structures with the fields of those in ``call.h`` and ``copies.h``."""

from __future__ import annotations

import ctypes
from ctypes import c_float, c_int32, c_int64, c_uint32, c_void_p
from typing import Any, ClassVar


class Call(ctypes.Structure):
    """``Call`` of ``call.h``: the argument of all kernels of attention."""

    _fields_: ClassVar[Any] = [
        *((name, c_void_p) for name in ("query", "key", "value", "out", "keys", "values")),
        *((name, c_void_p) for name in ("query_start", "lengths", "tables", "slots")),
        *((name, c_void_p) for name in ("slopes", "partials")),
        *((name, c_int64) for name in ("query_token", "query_head", "key_token", "key_head")),
        *((name, c_int64) for name in ("value_token", "value_head")),
        *((name, c_int64) for name in ("cache_block", "cache_head")),
        *((name, c_int32) for name in ("table_width", "tokens", "sequences", "heads")),
        *((name, c_int32) for name in ("kv_heads", "dim", "block_size")),
        *((name, c_uint32) for name in ("block_factor", "block_shift")),
        *((name, c_int32) for name in ("window", "rows_are_tokens", "tiles_from")),
        *((name, c_int32) for name in ("split", "max_splits", "num_splits")),
        ("scale", c_float),
        ("soft_cap", c_float),
    ]


class BlockCopies(ctypes.Structure):
    """``BlockCopies`` of ``copies.h``: the argument of the kernel that copies blocks."""

    _fields_: ClassVar[Any] = [
        *((name, c_void_p) for name in ("sources", "targets", "block_bytes", "pairs")),
        ("num_caches", c_int32),
        ("num_pairs", c_int32),
    ]


class Argument:
    """A structure that a kernel gets by value; it is read when the kernel is launched."""

    __slots__ = ("address", "pointers", "structure")

    def __init__(self, structure: ctypes.Structure) -> None:
        self.structure = structure
        self.address = ctypes.addressof(structure)
        self.pointers = (c_void_p * 1)(self.address)
        """What ``cuLaunchKernel`` takes: an address for each parameter."""


def divider(divisor: int) -> tuple[int, int]:
    """Return factor and shift by which a kernel divides numbers below ``2^31`` by ``divisor``.

    Source: T. Granlund, P. Montgomery, Division by invariant integers using multiplication, 1994.
    """
    shift = (divisor - 1).bit_length()
    return (((1 << shift) - divisor) << 32) // divisor + 1, shift
