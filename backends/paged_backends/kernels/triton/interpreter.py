"""Whether Triton's interpreter executes the kernels; Triton is not imported."""

from __future__ import annotations

import os

INTERPRETER = "TRITON_INTERPRET"
"""The environment variable with which Triton interprets kernels; Triton reads it when imported."""


def is_interpreted() -> bool:
    """Whether kernels are executed by Triton's interpreter, on the CPU."""
    return os.environ.get(INTERPRETER, "").lower() in ("1", "true", "yes", "on", "y")
