"""Which instruction sets there are kernels for, and which of them this processor has."""

from __future__ import annotations

import ctypes
import platform
from dataclasses import dataclass

from paged_backends.kernels.cpu.compiler import CannotCompile, Compiler
from paged_backends.kernels.library_cache import library


@dataclass(frozen=True, slots=True)
class InstructionSet:
    """One of them."""

    name: str
    flags: tuple[str, ...]
    """What tells the compiler."""
    bit: int
    """What ``detect.cpp`` calls it; 0: every processor has it."""


_SLOW = 8
"""A bit of the answer of ``detect.cpp``: pairs of bfloat16 are slower than float32."""
_AVX2 = ("-mavx2", "-mfma")
_AVX512 = (
    *_AVX2,
    "-mavx512f",
    "-mavx512bw",
    "-mavx512dq",
    "-mavx512vl",
    "-mprefer-vector-width=512",
)
_BF16 = (*_AVX512, "-mavx512bf16")
_MIXED = (*_BF16, "-DSLOW_PAIRS")
SETS = (
    InstructionSet("avx512_amx", (*_MIXED, "-mamx-tile", "-mamx-bf16"), 16),
    InstructionSet("avx512_bf16", _BF16, 4),
    InstructionSet("avx512_bf16_mixed", _MIXED, 4),
    InstructionSet("avx512", _AVX512, 2),
    InstructionSet("avx2", _AVX2, 1),
    InstructionSet("portable", (), 0),
)
"""Best first; see :func:`available`."""
_INTEL = ("avx512_amx", "avx512_bf16_mixed")
"""What comes first where pairs are slow."""
EMULATED = (
    InstructionSet("avx512_amx_emulated", (*_MIXED, "-DEMULATE_AMX"), 4),
    InstructionSet("portable_amx_emulated", ("-DEMULATE_AMX",), 0),
)
"""What runs in tile registers, emulated where there are none: for tests, slow, never chosen by
``auto``. The first does everything else as ``avx512_amx`` does, and has its bits."""


class NoSuchInstructions(Exception):
    """The processor lacks what was asked for, or the system does not let this process use it."""


def available(compiler: Compiler | CannotCompile) -> list[InstructionSet]:
    """Return those that this processor and its system can run, best first, without the emulated.

    AMD's processors multiply pairs of bfloat16 at twice the rate of float32, Intel's at half of it:
    there ``avx512_bf16_mixed`` is better, which makes products of floats, and takes pairs where
    reading them is the limit.

    Raises:
        CannotCompile: the question itself cannot be compiled.
    """
    bits = _bits(compiler)
    found = [one for one in SETS if one.bit & bits == one.bit]
    if bits & _SLOW:
        found.sort(key=lambda one: _INTEL.index(one.name) if one.name in _INTEL else len(_INTEL))
    return found


def choose(name: str, compiler: Compiler | CannotCompile) -> list[InstructionSet]:
    """Return what to try, best first: the one called ``name``, or for ``auto`` all there are.

    Raises:
        NoSuchInstructions: this processor cannot run it.
        CannotCompile: see :func:`available`.
    """
    there = available(compiler)
    if name == "auto":
        return there
    bits = _bits(compiler)
    emulated = [one for one in EMULATED if one.bit & bits == one.bit]
    found = [one for one in (*there, *emulated) if one.name == name]
    if not found:
        names = ", ".join(one.name for one in there)
        raise NoSuchInstructions(
            f"this processor cannot run instruction_set {name!r}; it can run: {names}"
        )
    return found


def _bits(compiler: Compiler | CannotCompile) -> int:
    """What ``detect.cpp`` answers."""
    if platform.machine() not in {"x86_64", "AMD64"}:
        return 0
    path = library("detect", ["detect.cpp"], (), compiler)
    bits: int = ctypes.CDLL(str(path)).paged_core_instruction_sets()
    return bits
