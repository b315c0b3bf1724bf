"""NVIDIA GPUs: whether PyTorch can use one here, and of which generation it is."""

from __future__ import annotations

from pathlib import Path

_DEVICES = (
    *("/dev/nvidiactl", "/dev/nvidia0", "/proc/driver/nvidia/version"),
    *("/dev/nvhost-gpu", "/dev/nvgpu"),
    "/dev/dxg",
)
"""Files of the driver on Linux, on Jetson, and in Linux on Windows."""
_AMPERE = (8, 0)
"""Asynchronous copies and tensor cores of bfloat16 came with it."""


def has_driver() -> bool:
    """Return True if the driver of an NVIDIA GPU is there; PyTorch is not imported."""
    return any(Path(device).exists() for device in _DEVICES)


def gpu_problem() -> str | None:
    """Return why PyTorch can use no NVIDIA GPU here, and what would help; ``None``: it can."""
    import torch

    if torch.version.cuda is not None and torch.cuda.is_available():
        return None
    if not has_driver():
        return "there is no NVIDIA GPU here, or no driver for it"
    if torch.version.cuda is None:
        return (
            f"PyTorch {torch.__version__} is built without CUDA; `pip install --force-reinstall "
            "torch --index-url https://download.pytorch.org/whl/cu130` installs a build that has it"
        )
    return f"PyTorch {torch.__version__} finds no CUDA device; see what `nvidia-smi` says"


def compute_capability(device: str) -> tuple[int, int] | None:
    """Return the compute capability of an NVIDIA GPU, (9, 0) for an H100; ``None``: it is none."""
    import torch

    if torch.device(device).type != "cuda" or torch.version.cuda is None:
        return None
    return torch.cuda.get_device_capability(device)


def capability_problem(capability: tuple[int, int], gpu: str = "the GPU") -> str | None:
    """Return why ``gpu`` is too old for kernels of Ampere and newer, or ``None``."""
    if capability < _AMPERE:
        least = f"compute capability {dotted(_AMPERE)} or more"
        return f"it needs {least}, and {gpu} has {dotted(capability)}"
    return None


def dotted(capability: tuple[int, int]) -> str:
    """Return ``9.0`` for (9, 0)."""
    return ".".join(map(str, capability))
