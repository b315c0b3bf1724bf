"""The instruction sets that the kernels are compiled for, and which of them this processor has."""

from __future__ import annotations

import ctypes
import platform
from dataclasses import dataclass

from paged_backends.kernels.build import CannotCompile, Compiler
from paged_backends.kernels.cpu.compiler import cpp_build
from paged_backends.kernels.cpu.set_names import InstructionSetName, ProductsName
from paged_backends.kernels.library_cache import library


@dataclass(frozen=True, slots=True)
class InstructionSet:
    """An instruction set, or an emulated one."""

    name: InstructionSetName
    flags: tuple[str, ...]
    """Of the compiler."""
    bit: int
    """Its bit in the result of ``detect.cpp``; 0: every processor has it."""

    @property
    def has_tiles(self) -> bool:
        """There are tile registers, or an emulation of them."""
        return "-mamx-bf16" in self.flags or "-DEMULATE_AMX" in self.flags


_SLOW = 8
"""A bit of the result of ``detect.cpp``: pairs of bfloat16 are slower than float32."""
_AVX2 = ("-mavx2", "-mfma")
_AVX512 = (
    *_AVX2,
    "-mavx512f",
    "-mavx512bw",
    "-mavx512dq",
    "-mavx512vl",
    "-mprefer-vector-width=512",
)
_VNNI = (*_AVX512, "-mavx512vnni")
_BF16 = (*_VNNI, "-mavx512bf16")
_MIXED = (*_BF16, "-DSLOW_PAIRS")
SETS = (
    InstructionSet("avx512_amx", (*_MIXED, "-mamx-tile", "-mamx-bf16", "-mamx-int8"), 16),
    InstructionSet("avx512_bf16", _BF16, 4),
    InstructionSet("avx512_bf16_mixed", _MIXED, 4),
    InstructionSet("avx512_vnni", _VNNI, 32),
    InstructionSet("avx512", _AVX512, 2),
    InstructionSet("avx2_vnni", (*_AVX2, "-mavxvnni"), 64),
    InstructionSet("avx2", _AVX2, 1),
    InstructionSet("portable", (), 0),
)
"""Best first; see :func:`available`."""
_INTEL = ("avx512_amx", "avx512_bf16_mixed")
"""Preferred where pairs are slow."""
EMULATED = (
    InstructionSet("avx512_amx_emulated", (*_MIXED, "-DEMULATE_AMX"), 4),
    InstructionSet("portable_amx_emulated", ("-DEMULATE_AMX",), 0),
)
"""Tile registers emulated in software: slow, for tests, never chosen by ``auto``. The first is
otherwise compiled as ``avx512_amx`` is, and gives bit-identical results."""


class NoSuchInstructions(Exception):
    """The processor lacks an instruction set, or the system does not let this process use it."""


def available(compiler: Compiler | CannotCompile) -> list[InstructionSet]:
    """Return the sets that this processor and its system can run, best first; none is emulated.

    AMD's processors multiply pairs of bfloat16 at twice the rate of float32, Intel's at half of it:
    there ``avx512_bf16_mixed`` is better, which multiplies floats, and pairs only where memory
    bandwidth is the limit.

    Raises:
        CannotCompile: ``detect.cpp`` cannot be compiled.
    """
    bits = _bits(compiler)
    found = [one for one in SETS if one.bit & bits == one.bit]
    if bits & _SLOW:
        found.sort(key=lambda one: _INTEL.index(one.name) if one.name in _INTEL else len(_INTEL))
    return found


def choose(name: str, compiler: Compiler | CannotCompile) -> list[InstructionSet]:
    """Return the candidates, best first: the set called ``name``, or for ``auto`` all available.

    Raises:
        NoSuchInstructions: this processor cannot run it.
        CannotCompile: see :func:`available`.
    """
    found = available(compiler)
    if name == "auto":
        return found
    bits = _bits(compiler)
    emulated = [one for one in EMULATED if one.bit & bits == one.bit]
    named = [one for one in (*found, *emulated) if one.name == name]
    if not named:
        names = ", ".join(one.name for one in found)
        raise NoSuchInstructions(
            f"this processor cannot run {name!r}; it can run: {names}; or set it to auto"
        )
    return named


def products(instruction_set: str) -> ProductsName:
    """Return the faster arithmetic of products of bfloat16 with quantised weights.

    With tile registers, integers are slower for more than a few rows: the sums of every group must
    be scaled on the vector units.
    """
    has_tiles = any(one.has_tiles for one in (*SETS, *EMULATED) if one.name == instruction_set)
    return "widened" if has_tiles else "integer"


def _bits(compiler: Compiler | CannotCompile) -> int:
    """Return the result of ``detect.cpp``."""
    if platform.machine() not in {"x86_64", "AMD64"}:
        return 0
    path = library(cpp_build("detect", ["detect.cpp"]), compiler)
    bits: int = ctypes.CDLL(str(path)).paged_core_instruction_sets()
    return bits
