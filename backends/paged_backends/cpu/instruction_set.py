"""Which instruction sets there are kernels for, and which of them this processor has."""

from __future__ import annotations

import ctypes
import platform
from dataclasses import dataclass

from paged_backends.cpu.compiler import CannotCompile, Compiler
from paged_backends.cpu.library_cache import library


@dataclass(frozen=True, slots=True)
class InstructionSet:
    """One of them."""

    name: str
    flags: tuple[str, ...]
    """What tells the compiler."""
    bit: int
    """What ``detect.cpp`` calls it; 0: every processor has it."""


_SLOW = 8
"""A bit of the answer of ``detect.cpp``."""
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
SETS = (
    InstructionSet("avx512_bf16", _BF16, 4),
    InstructionSet("avx512_bf16_mixed", (*_BF16, "-DSLOW_PAIRS"), 4),
    InstructionSet("avx512", _AVX512, 2),
    InstructionSet("avx2", _AVX2, 1),
    InstructionSet("portable", (), 0),
)
"""Best first; see :func:`available`."""


class NoSuchInstructions(Exception):
    """The processor lacks what was asked for."""


def available(compiler: Compiler | CannotCompile) -> list[InstructionSet]:
    """Return those that this processor and its system can run, best first.

    AMD's processors multiply pairs of bfloat16 at twice the rate of float32, Intel's at half of it:
    there ``avx512_bf16_mixed`` is better, which makes products of floats, and takes pairs where
    reading them is the limit.

    Raises:
        CannotCompile: the question itself cannot be compiled.
    """
    bits = 0
    if platform.machine() in {"x86_64", "AMD64"}:
        path = library("detect", ["detect.cpp"], (), compiler)
        bits = ctypes.CDLL(str(path)).paged_core_instruction_sets()
    found = [one for one in SETS if one.bit & bits == one.bit]
    if bits & _SLOW:
        found.sort(key=lambda one: one.name != "avx512_bf16_mixed")  # it comes first
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
    found = [one for one in there if one.name == name]
    if not found:
        names = ", ".join(one.name for one in there)
        raise NoSuchInstructions(
            f"this processor cannot run instruction_set {name!r}; it can run: {names}"
        )
    return found
