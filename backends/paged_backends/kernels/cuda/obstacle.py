"""Whether the CUDA kernels can be compiled and run here. Nothing is compiled or loaded."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from paged_backends.kernels.build import CannotCompile
from paged_backends.kernels.cpu.compiler import find_compiler

if TYPE_CHECKING:
    from paged_backends.attention.settings import CudaSettings


def obstacle(options: CudaSettings) -> str | None:
    """Return why not on the target that is chosen, or ``None``.

    The backend looks at the GPU of a layer when it is shown one.
    """
    from paged_backends.kernels.cuda.devices import device_problem
    from paged_backends.kernels.cuda.toolkit import find_compilers

    if os.name != "posix":
        return "the kernels are compiled on Linux only; attention 'torch' needs no compiler"
    emulated = options.target != "auto"
    problem = None if emulated else device_problem(0)
    if problem is not None:
        return f"{problem}; for tests, `target: emulated` runs the kernels on the CPU"
    found = find_compiler() if emulated else find_compilers()
    return str(found) if isinstance(found, CannotCompile) else None


def details() -> str:
    """Return the GPU and the compiler."""
    from paged_backends.kernels.cuda.devices import describe
    from paged_backends.kernels.cuda.toolkit import find_compilers

    compilers = find_compilers()
    by = "nothing" if isinstance(compilers, CannotCompile) else compilers[0].path
    return f"{describe(0)}, compiled by {by}"
