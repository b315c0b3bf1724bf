"""Availability of the Triton kernels, on a GPU or interpreted; Triton is not imported."""

from __future__ import annotations

import os
from importlib.metadata import version
from importlib.util import find_spec

from paged_backends.kernels.nvidia import gpu_problem

INTERPRETER = "TRITON_INTERPRET"
"""The environment variable with which Triton interprets kernels; Triton reads it when imported."""


def is_interpreted() -> bool:
    """Return True if kernels are executed by Triton's interpreter, on the CPU."""
    return os.environ.get(INTERPRETER, "").lower() in ("1", "true", "yes", "on", "y")


def rank() -> int:
    """For ``auto``, which prefers everything else to the interpreter."""
    return -1 if is_interpreted() else 25


def unavailable_reason() -> str | None:
    """Return why not, or ``None``; nothing is compiled."""
    if find_spec("triton") is None:
        return "triton is not installed: pip install 'paged-core[gpu]' (Linux)"
    problem = None if is_interpreted() else gpu_problem()
    if problem is not None:
        return f"{problem}; {INTERPRETER}=1 runs the kernels on the CPU, for tests"
    return None


def details() -> str:
    """Return the version of Triton, and whether it interprets kernels."""
    found = f"triton {version('triton')}"
    return f"{found}, interpreted on the CPU ({INTERPRETER} is set)" if is_interpreted() else found
