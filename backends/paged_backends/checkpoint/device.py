"""The device that a model runs on."""

from __future__ import annotations

import torch

from paged_core.errors import SettingsError


def choose_device(name: str) -> torch.device:
    """Return the device that ``device`` names; ``auto``: CUDA if it is available.

    Raises:
        SettingsError: the device is not available here.
    """
    if name == "auto":
        return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise SettingsError(
            f"device: there is no {name!r}; set it to auto, cpu, cuda or cuda:N"
        ) from error
    if device.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        index = device.index or 0
        if index >= count:
            raise SettingsError(
                f"device: {name} is not there: torch {torch.__version__} sees {count} CUDA "
                "devices; set device to auto or cpu, or install a build of torch for CUDA"
            )
        return torch.device("cuda", index)
    if device.type != "cpu" and not _answers(device):
        raise SettingsError(
            f"device: {name} is not there, or not known to torch {torch.__version__}; set device "
            "to auto or cpu"
        )
    return device


def _answers(device: torch.device) -> bool:
    try:
        torch.empty(1, device=device)
    except (RuntimeError, NotImplementedError, AssertionError):
        return False
    return True
