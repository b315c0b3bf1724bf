"""Availability of the kernels for CPUs: whether they can be compiled here, and for which sets."""

from __future__ import annotations

import os

from paged_backends.kernels.build import CannotCompile, is_cached
from paged_backends.kernels.cpu.bindings import kernels_build
from paged_backends.kernels.cpu.compiler import SETS, available, find_compiler, products


def unavailable_reason() -> str | None:
    """Return why not, or ``None``; nothing is compiled or loaded."""
    if os.name != "posix":
        return (
            "the kernels are compiled on Linux and macOS only; attention 'torch' needs no compiler"
        )
    compiler = find_compiler()
    if isinstance(compiler, CannotCompile) and not any(
        is_cached(kernels_build(one)) for one in SETS
    ):
        return f"{compiler}; attention 'torch' needs none, and is slower"
    return None


def details() -> str:
    """Return the instruction set that ``auto`` takes, and the others that can be named.

    Raises:
        CannotCompile: ``detect.cpp`` cannot be compiled.
    """
    best, *others = (one.name for one in available(find_compiler()))
    return f"instruction_set {best}" + (f", or {', '.join(others)}" if others else "")


def runner_details() -> str:
    """Return the instruction set of the best kernels, and how they multiply quantised weights.

    Raises:
        CannotCompile: ``detect.cpp`` cannot be compiled.
    """
    reason = unavailable_reason()
    if reason is not None:
        return f"without kernels for this CPU: {reason}"
    best = available(find_compiler())[0].name
    return (
        f"by default kernels {best}; products of bfloat16 with quantised weights {products(best)} "
        "(integer rounds activations to 8 bits; dtype: float32 rounds nothing)"
    )
