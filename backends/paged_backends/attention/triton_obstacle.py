"""Whether the Triton kernels can run here; imports neither triton nor torch."""

from __future__ import annotations

import os
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

INTERPRETER = "TRITON_INTERPRET"
"""The environment variable with which Triton interprets kernels; Triton reads it when imported."""

_DEVICES = (
    *("/dev/nvidiactl", "/dev/nvidia0", "/proc/driver/nvidia/version"),
    *("/dev/nvhost-gpu", "/dev/nvgpu"),
    "/dev/dxg",
)
"""What the driver has on Linux, on Jetson, and in Linux on Windows."""


def has_gpu() -> bool:
    """Whether the driver of an NVIDIA GPU is there."""
    return any(Path(device).exists() for device in _DEVICES)


def is_interpreted() -> bool:
    """Whether kernels are executed by Triton's interpreter, on the CPU."""
    return os.environ.get(INTERPRETER, "").lower() in ("1", "true", "yes", "on", "y")


def rank() -> int:
    """For ``auto``, which prefers everything else to the interpreter."""
    return -1 if is_interpreted() else 25


def obstacle() -> str | None:
    """Return why not, or ``None``; nothing is compiled."""
    if find_spec("triton") is None:
        return "triton is not installed: pip install 'paged-core[gpu]' (Linux)"
    if not is_interpreted() and not has_gpu():
        return (
            f"there is no NVIDIA GPU here; {INTERPRETER}=1 runs the kernels on the CPU, for tests"
        )
    return None


def details() -> str:
    """Return the version of Triton, and whether it interprets kernels."""
    found = f"triton {version('triton')}"
    return f"{found}, interpreted on the CPU ({INTERPRETER} is set)" if is_interpreted() else found
