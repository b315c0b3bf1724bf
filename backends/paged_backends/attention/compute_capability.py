"""Which generation of NVIDIA GPU a device is."""

from __future__ import annotations

import torch


def compute_capability(device: str) -> tuple[int, int] | None:
    """Return the compute capability of an NVIDIA GPU, (9, 0) for an H100; ``None``: it is none."""
    if torch.device(device).type != "cuda" or torch.version.cuda is None:
        return None
    return torch.cuda.get_device_capability(device)


def dotted(capability: tuple[int, int]) -> str:
    """Return ``9.0`` for (9, 0)."""
    return ".".join(map(str, capability))
