"""ctypes bindings of the compiled library: its functions, and the structures that they take.

The library exports the sizes of the structures in bytes, and is refused if they differ from these.
"""

from __future__ import annotations

import _ctypes
import ctypes
import os
from ctypes import c_float, c_int, c_int32, c_int64, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from paged_backends.kernels.build import Build, CannotCompile, Compiler, discard, library
from paged_backends.kernels.cpu.compiler import (
    InstructionSet,
    NoSuchInstructions,
    choose,
    cpp_build,
    find_compiler,
)
from paged_core.log import get_logger

UNITS = (
    *("products.cpp", "quantized.cpp", "attention.cpp", "decoder.cpp"),
    *("sampling.cpp", "permission.cpp"),
)

_log = get_logger()


class AttentionCall(ctypes.Structure):
    """``AttentionCall`` of ``attention.h``: the argument of ``attend``."""

    _fields_: ClassVar[Any] = [
        *((name, c_void_p) for name in ("query", "key", "value", "out", "cache")),
        *((name, c_int64) for name in ("query_token", "query_head", "key_token", "key_head")),
        *((name, c_int64) for name in ("value_token", "value_head", "out_token")),
        *((name, c_void_p) for name in ("starts", "lengths", "tables", "slots")),
        *((name, c_int64) for name in ("table_width", "tokens", "heads", "kv_heads")),
        *((name, c_int64) for name in ("dim", "block_size", "window")),
        *((name, c_void_p) for name in ("slopes", "sinks", "items", "joins", "shares")),
        *((name, c_void_p) for name in ("members", "partials")),
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

_P, _I, _F = c_void_p, c_int64, c_float
_ARGUMENTS: dict[str, tuple[list[Any], Any]] = {
    "ask_permission": ([], c_int),
    "packed_size": ([c_int, _I, _I], _I),
    "pack": ([c_int, _P, _P, _I, _I, c_int], None),
    "linear": ([c_int, _P, _I, _P, _P, _P, _P, _I, _I, _I, _I, c_int], None),
    "packed_codes_size": ([_P, _I, _I], _I),
    "pack_codes": ([*(_P,) * 5, _I, _I, c_int], None),
    "quantized_linear": ([c_int, _P, _P, _I, *(_P,) * 4, *(_I,) * 4, c_int], None),
    "norm": ([c_int, c_int, _P, _I, _P, _P, _P, _I, _I, _I, _F, _F, c_int], None),
    "rope": (
        [c_int, _P, _I, _P, _I, _P, _P, _P, _P, _P, _I, _I, _I, _I, _I, _F, _F, c_int],
        None,
    ),
    "gate": ([c_int, c_int, _P, _I, _P, _I, _I, _I, c_int], None),
    "argmax": ([c_int, _P, _I, _I, _I, _P, c_int], None),
    "draw": ([c_int, _P, _I, _I, _I, _P, _P, c_int], None),
    "plan": ([*(_P,) * 3, *(_I,) * 8, c_int, *(_P,) * 5], None),
    "attend": ([_P], None),
    "decoder_numbers": ([_P], _I),
    "decoder": ([_P], None),
}


def kernels_build(chosen: InstructionSet) -> Build:
    """Return the build of the kernels for an instruction set."""
    return cpp_build(f"kernels-{chosen.name}", UNITS, chosen.flags)


@dataclass(frozen=True, slots=True)
class Bindings:
    """The functions of one compiled library; the C++ sources document what each does."""

    instruction_set: str
    path: Path
    ask_permission: Any
    packed_size: Any
    pack: Any
    linear: Any
    packed_codes_size: Any
    pack_codes: Any
    quantized_linear: Any
    norm: Any
    rope: Any
    gate: Any
    argmax: Any
    draw: Any
    plan: Any
    attend: Any
    decoder_numbers: Any
    decoder: Any

    @classmethod
    def load(cls, instruction_set: str = "auto") -> Bindings:
        """Load the library, compiled first if it is not in the cache.

        With ``auto``, an instruction set that the compiler does not support, or that the system
        does not let this process use, is skipped with a warning.

        Raises:
            CannotCompile: there is no compiler, or it fails.
            NoSuchInstructions: this processor lacks the instruction set that was named, or the
                system does not let this process use it.
        """
        if os.name != "posix":
            raise CannotCompile("the kernels are compiled on Linux and macOS only")
        compiler = find_compiler()
        candidates = choose(instruction_set, compiler)
        for index, candidate in enumerate(candidates):
            try:
                return cls._build_and_open(candidate, compiler)
            except (CannotCompile, NoSuchInstructions) as error:
                if index + 1 == len(candidates):
                    raise
                _log.warning("instruction_set_passed_over", name=candidate.name, reason=str(error))
        raise AssertionError("portable code is always a candidate")

    @classmethod
    def _build_and_open(
        cls, chosen: InstructionSet, compiler: Compiler | CannotCompile
    ) -> Bindings:
        build = kernels_build(chosen)
        path = library(build, compiler)
        try:
            return cls.open(chosen.name, path)
        except CannotCompile as error:
            if isinstance(compiler, CannotCompile):
                raise
            _log.warning("kernels_compiled_again", path=str(path), reason=str(error))
            discard(path)
            return cls.open(chosen.name, library(build, compiler))

    @classmethod
    def open(cls, instruction_set: str, path: Path) -> Bindings:
        """Load a compiled library, and ask the system for permission to use its instructions.

        Raises:
            CannotCompile: the system cannot load it.
            NoSuchInstructions: the system does not let this process use them.
        """
        try:
            loaded = ctypes.CDLL(str(path))
        except OSError as error:
            raise CannotCompile(f"the compiled kernels cannot be loaded: {error}") from error
        try:
            functions = {name: getattr(loaded, f"paged_core_{name}") for name in _ARGUMENTS}
            found = tuple((c_int64 * len(BYTES)).in_dll(loaded, "paged_core_struct_bytes"))
        except (AttributeError, ValueError) as error:
            _ctypes.dlclose(loaded._handle)  # else a rebuilt file of that name would not be loaded
            raise CannotCompile(f"the compiled library lacks a function: {error}") from error
        for name, (arguments, result) in _ARGUMENTS.items():
            functions[name].argtypes = arguments
            functions[name].restype = result
        if found != BYTES:
            _ctypes.dlclose(loaded._handle)
            raise CannotCompile(
                f"the compiled kernels take structures of {found} bytes, and these are {BYTES}"
            )
        if refused := functions["ask_permission"]():
            raise NoSuchInstructions(
                f"the system does not let this process use {instruction_set}: "
                f"{os.strerror(refused)} (an alternative signal stack may be too small)"
            )
        return cls(instruction_set, path, **functions)
