"""Which instruction sets there are kernels for, and which of them this processor has."""

from __future__ import annotations

import ctypes
import platform
from dataclasses import dataclass, replace

from paged_backends.cpu.compiler import Compiler
from paged_backends.cpu.library_cache import library


@dataclass(frozen=True, slots=True)
class InstructionSet:
    """One of them."""

    name: str
    flags: tuple[str, ...]
    """What tells the compiler."""
    bit: int
    """What ``detect.cpp`` calls it; 0: every processor has it."""


_PAIRS, _SLOW = 4, 8
"""Bits of the answer of ``detect.cpp``."""
_AVX2 = ("-mavx2", "-mfma")
_AVX512 = (
    *_AVX2,
    "-mavx512f",
    "-mavx512bw",
    "-mavx512dq",
    "-mavx512vl",
    "-mprefer-vector-width=512",
)
SETS = (
    InstructionSet("avx512_bf16", (*_AVX512, "-mavx512bf16"), 4),
    InstructionSet("avx512", _AVX512, 2),
    InstructionSet("avx2", _AVX2, 1),
    InstructionSet("portable", (), 0),
)
"""Best first; see :func:`available`."""


class NoSuchInstructions(Exception):
    """The processor lacks what was asked for."""


def available(compiler: Compiler) -> list[InstructionSet]:
    """Return those that this processor and its system can run, best first.

    AMD's processors multiply pairs of bfloat16 at twice the rate of float32, Intel's at half of it,
    which the sources are told.

    Raises:
        CannotCompile: the question itself cannot be compiled.
    """
    bits = 0
    if platform.machine() in {"x86_64", "AMD64"}:
        path = library("detect", ["detect.cpp"], (), compiler)
        bits = ctypes.CDLL(str(path)).paged_core_instruction_sets()
    return [
        replace(one, flags=(*one.flags, "-DSLOW_PAIRS"))
        if one.bit & bits & _PAIRS and bits & _SLOW
        else one
        for one in SETS
        if one.bit & bits == one.bit
    ]


def choose(name: str, compiler: Compiler) -> list[InstructionSet]:
    """Return what to try, best first: the one called ``name``, or for ``auto`` all there are.

    Raises:
        NoSuchInstructions: this processor cannot run it.
        CannotCompile: see :func:`available`.
    """
    there = available(compiler)
    if name == "auto":
        return there
    found = [one for one in there if one.name == name]
    if not found:
        names = ", ".join(one.name for one in there)
        raise NoSuchInstructions(
            f"this processor cannot run instruction_set {name!r}; it can run: {names}"
        )
    return found
