"""Arguments of the kernels: structures with the fields of those in the C++ sources.

The library exports their sizes in bytes, and is refused if they differ from these.
"""

from __future__ import annotations

import ctypes
from ctypes import c_float, c_int32, c_int64, c_void_p
from typing import Any, ClassVar


class AttentionCall(ctypes.Structure):
    """``AttentionCall`` of ``attention.h``: the argument of ``attend``."""

    _fields_: ClassVar[Any] = [
        *((name, c_void_p) for name in ("query", "key", "value", "out", "cache")),
        *(
            (name, c_int64)
            for name in (
                "query_token",
                "query_head",
                "key_token",
                "key_head",
                "value_token",
                "value_head",
                "out_token",
            )
        ),
        *((name, c_void_p) for name in ("starts", "lengths", "tables", "slots")),
        *(
            (name, c_int64)
            for name in (
                "table_width",
                "tokens",
                "heads",
                "kv_heads",
                "dim",
                "block_size",
                "window",
            )
        ),
        *((name, c_void_p) for name in ("slopes", "items", "joins", "shares", "members")),
        ("partials", c_void_p),
        *((name, c_int64) for name in ("num_items", "num_joins")),
        ("scale", c_float),
        ("soft_cap", c_float),
        ("type", c_int32),
        ("threads", c_int32),
        ("is_coded", c_int32),
        ("reserved", c_int32),
    ]


class Norm(ctypes.Structure):
    """``NormPair`` of ``decoder.cpp``: weight and bias of a norm."""

    _fields_: ClassVar[Any] = [("weight", c_void_p), ("bias", c_void_p)]


class CodeFormat(ctypes.Structure):
    """``CodeFormat`` of ``packed_codes.h``: how codes of a weight are stored and multiplied."""

    _fields_: ClassVar[Any] = [
        *((name, c_int32) for name in ("bits", "group", "has_offsets", "is_widened")),
        ("factor", c_float),
    ]


class Matrix(ctypes.Structure):
    """``Matrix`` of ``decoder.cpp``: a packed weight."""

    _fields_: ClassVar[Any] = [
        ("packed", c_void_p),
        ("bias", c_void_p),
        ("width", c_int64),
        ("columns", c_int64),
        ("format", CodeFormat),
    ]


class DecoderLayer(ctypes.Structure):
    """``DecoderLayer`` of ``decoder.cpp``."""

    _fields_: ClassVar[Any] = [
        ("attention_norm", Norm),
        ("attention_output_norm", Norm),
        ("mlp_norm", Norm),
        ("mlp_output_norm", Norm),
        ("query_norm", c_void_p),
        ("key_norm", c_void_p),
        ("query_key_value", Matrix),
        ("output", Matrix),
        ("up", Matrix),
        ("down", Matrix),
        ("rope", c_int64),
        ("attention", c_void_p),
    ]


AllReduce = ctypes.CFUNCTYPE(None, c_int64)
"""Is given how many numbers of a call's memory are summed over the ranks."""


class DecoderCall(ctypes.Structure):
    """``DecoderCall`` of ``decoder.cpp``: the argument of ``decoder``."""

    _fields_: ClassVar[Any] = [
        *((name, c_void_p) for name in ("layers", "hidden", "positions")),
        *((name, c_void_p) for name in ("cosines", "sines", "memory")),
        ("all_reduce", AllReduce),
        *((name, c_int64) for name in ("num_layers", "hidden_stride", "rows")),
        *((name, c_int64) for name in ("width", "half")),
        *((name, c_int32) for name in ("activation", "gated", "norm_kind")),
        ("epsilon", c_float),
        ("offset", c_float),
        ("type", c_int32),
        ("threads", c_int32),
    ]


INT32S = (5, 4, 4, 3)
"""32-bit fields of an ``Item``, a ``Join``, a ``Share`` and a ``Member`` of ``attention.h``."""

BYTES = (
    *(ctypes.sizeof(struct) for struct in (AttentionCall, DecoderCall, DecoderLayer, CodeFormat)),
    *(4 * count for count in INT32S),
)
"""In the order of ``paged_core_struct_bytes``."""
