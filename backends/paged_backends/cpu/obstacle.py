"""Whether there can be kernels for CPUs here; light: it compiles nothing and loads nothing."""

from __future__ import annotations

import os

from paged_backends.cpu.compiler import CannotCompile, find_compiler
from paged_backends.cpu.instruction_set import SETS
from paged_backends.cpu.library import UNITS
from paged_backends.cpu.library_cache import is_kept


def obstacle() -> str | None:
    """Say why not, or return ``None``."""
    if os.name != "posix":
        return "the kernels are compiled on Linux and macOS only; attention 'torch' serves here"
    compiler = find_compiler()
    if isinstance(compiler, CannotCompile) and not any(
        is_kept(f"kernels-{one.name}", UNITS, one.flags) for one in SETS
    ):
        return f"{compiler}; until then attention 'torch' serves, more slowly"
    return None
