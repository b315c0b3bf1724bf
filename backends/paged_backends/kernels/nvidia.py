"""Whether there is an NVIDIA GPU that PyTorch can use."""

from __future__ import annotations

from pathlib import Path

_DEVICES = (
    *("/dev/nvidiactl", "/dev/nvidia0", "/proc/driver/nvidia/version"),
    *("/dev/nvhost-gpu", "/dev/nvgpu"),
    "/dev/dxg",
)
"""What the driver has on Linux, on Jetson, and in Linux on Windows."""


def has_driver() -> bool:
    """Whether the driver of an NVIDIA GPU is there; PyTorch is not imported."""
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
