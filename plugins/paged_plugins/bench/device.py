"""The device that the settings of a benchmark mean."""

from __future__ import annotations

from paged_core.settings import EngineSettings


def device_of(settings: EngineSettings) -> str:
    """Return the device as torch names it; ``auto``: the first GPU with CUDA, or else the CPU."""
    if settings.device != "auto":
        return settings.device
    import torch

    return "cuda:0" if torch.cuda.is_available() else "cpu"
