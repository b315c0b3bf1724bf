"""Whether the CUDA kernels can be compiled here, and what would run them."""

from __future__ import annotations

import os

from paged_backends.kernels.build import CannotCompile
from paged_backends.kernels.cpu.compiler import find_compiler


def obstacle() -> str | None:
    """Return why neither a GPU nor an emulation can be served, or ``None``.

    Nothing is compiled, and PyTorch is not asked for a GPU: the backend does so when it looks at a
    layer.
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
    from paged_backends.kernels.cuda.devices import device_problem
    from paged_backends.kernels.cuda.toolkit import find_compilers

    compilers = find_compilers()
    problem = device_problem(0)
    if problem is None and isinstance(compilers, CannotCompile):
        problem = str(compilers)
    if problem is not None:
        return f"emulated on the CPU only, for tests (target: emulated): {problem}"
    assert not isinstance(compilers, CannotCompile)
    from paged_backends.kernels.cuda.devices import describe

    return f"{describe(0)}, compiled by {compilers[0].version}"
