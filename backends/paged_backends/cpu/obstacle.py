"""Whether kernels for CPUs can be compiled here; light: it compiles nothing and loads nothing."""

from __future__ import annotations

import os

from paged_backends.cpu.compiler import CannotCompile, Compiler


def obstacle() -> str | None:
    """Say why not, or return ``None``."""
    if os.name != "posix":
        return "the kernels are compiled on Linux and macOS only; attention 'torch' serves here"
    try:
        Compiler.find()
    except CannotCompile as error:
        return f"{error}; until then attention 'torch' serves, more slowly"
    return None
