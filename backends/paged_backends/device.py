"""The device that a model runs on, and its free memory.

Copies of host arrays on the device.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import torch
from numpy.typing import NDArray
from torch import Tensor

from paged_core.errors import SettingsError


def choose_device(name: str, rank: int = 0) -> torch.device:
    """Return the device that ``device`` names; ``auto``: CUDA if it is available.

    Args:
        rank: of this process among those that compute a step together; each takes the CUDA device
            of its rank, unless the name has a number.

    Raises:
        SettingsError: the device is not available here.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise SettingsError(
            f"device: there is no {name!r}; set it to auto, cpu, cuda or cuda:N"
        ) from error
    if device.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        index = rank if device.index is None else device.index
        if index >= count:
            asked = f"cuda:{index}, for rank {rank}," if rank else name
            raise SettingsError(
                f"device: {asked} is not there: torch {torch.__version__} sees {count} CUDA "
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


def free_memory(device: torch.device) -> int:
    """Return the bytes that this process can still allocate."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return min(psutil.virtual_memory().available, _free_in_control_group())


def total_memory(device: torch.device) -> int:
    """Return the bytes that the device, or the machine, has in all."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[1])
    return int(psutil.virtual_memory().total)


def _free_in_control_group() -> int:
    """Return the bytes left to a container; outside of one, more than any machine has."""
    group = Path("/sys/fs/cgroup")
    try:
        limit = int((group / "memory.max").read_text())
        return max(0, limit - int((group / "memory.current").read_text()))
    except (OSError, ValueError):  # no such file, or the limit is "max"
        return 1 << 62


def to_device(array: NDArray[Any], device: torch.device) -> Tensor:
    """Return ``array`` as a tensor on ``device``, without waiting for the device.

    On a CPU the tensor shares the memory of the array. A copy to a GPU is from pinned memory and is
    ordered in the current stream; the array may be changed at once.
    """
    tensor = torch.from_numpy(array)
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)
