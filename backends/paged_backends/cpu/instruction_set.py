"""Which instruction sets there are kernels for, and which of them this processor has."""

from __future__ import annotations

import ctypes
import platform
from dataclasses import dataclass

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


SETS = (
    InstructionSet(
        "avx512_bf16",
        (
            "-mavx2",
            "-mfma",
            "-mavx512f",
            "-mavx512bw",
            "-mavx512dq",
            "-mavx512vl",
            "-mavx512bf16",
            "-mprefer-vector-width=512",
        ),
        2,
    ),
    InstructionSet("avx2", ("-mavx2", "-mfma"), 1),
    InstructionSet("portable", (), 0),
)
"""Best first."""


class NoSuchInstructions(Exception):
    """The processor lacks what was asked for."""


def available(compiler: Compiler) -> list[InstructionSet]:
    """Return those that this processor and its system can run, best first.

    Raises:
        CannotCompile: the question itself cannot be compiled.
    """
    bits = 0
    if platform.machine() in {"x86_64", "AMD64"}:
        path = library("detect", ["detect.cpp"], (), compiler)
        bits = ctypes.CDLL(str(path)).paged_core_instruction_sets()
    return [found for found in SETS if found.bit & bits == found.bit]


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
