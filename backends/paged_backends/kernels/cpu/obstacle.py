"""Whether there can be kernels for CPUs here, and for which instruction sets."""

from __future__ import annotations

import os

from paged_backends.kernels.cpu.compiler import CannotCompile, find_compiler
from paged_backends.kernels.cpu.instruction_set import SETS, available
from paged_backends.kernels.cpu.library import UNITS
from paged_backends.kernels.library_cache import is_kept


def obstacle() -> str | None:
    """Say why not, or return ``None``; it compiles nothing and loads nothing."""
    if os.name != "posix":
        return (
            "the kernels are compiled on Linux and macOS only; attention 'torch' needs no compiler"
        )
    compiler = find_compiler()
    if isinstance(compiler, CannotCompile) and not any(
        is_kept(f"kernels-{one.name}", UNITS, one.flags) for one in SETS
    ):
        return f"{compiler}; attention 'torch' needs none, and is slower"
    return None


def details() -> str:
    """Name the instruction set that ``auto`` takes, and the others that can be named.

    Raises:
        CannotCompile: what looks at the processor cannot be compiled.
    """
    best, *others = (one.name for one in available(find_compiler()))
    return f"instruction_set {best}" + (f", or {', '.join(others)}" if others else "")
