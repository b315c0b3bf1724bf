"""The device that the settings of a benchmark mean."""

from __future__ import annotations

from paged_core.errors import SettingsError
from paged_core.settings import EngineSettings


def device_of(settings: EngineSettings) -> str:
    """Return the device as torch names it; ``auto``: the first GPU with CUDA, or else the CPU.

    Raises:
        SettingsError: it is a CUDA device, and torch finds none.
    """
    import torch

    device = settings.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if not device.startswith("cuda"):
        return device
    if not torch.cuda.is_available():
        raise SettingsError(
            f"device {device}: torch {torch.__version__} finds no CUDA device; `paged-core doctor` "
            "says what there is"
        )
    return device if ":" in device else f"cuda:{torch.cuda.current_device()}"
