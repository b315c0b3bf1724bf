"""Whether the CUDA kernels can be compiled here, and what would run them."""

from __future__ import annotations

import os

from paged_backends.kernels.build import CannotCompile
from paged_backends.kernels.cpu.compiler import find_compiler


def obstacle() -> str | None:
    """Return why the kernels can be compiled neither for a GPU nor for its emulation, or ``None``.

    Nothing is compiled or loaded; the backend looks for a GPU when it is shown a layer.
    """
    from paged_backends.kernels.cuda.toolkit import find_compilers

    if os.name != "posix":
        return "the kernels are compiled on Linux only; attention 'torch' needs no compiler"
    compilers = find_compilers()
    if isinstance(compilers, CannotCompile) and isinstance(find_compiler(), CannotCompile):
        return str(compilers)
    return None


def details() -> str:
    """Return the GPU and the compiler, or why only the emulation can be chosen."""
    from paged_backends.kernels.cuda.devices import describe, device_problem
    from paged_backends.kernels.cuda.toolkit import find_compilers

    compilers = find_compilers()
    problem = device_problem(0)
    if problem is None and not isinstance(compilers, CannotCompile):
        return f"{describe(0)}, compiled by {compilers[0].path}"
    return f"for tests only, emulated on the CPU by `target: emulated`: {problem or compilers}"
