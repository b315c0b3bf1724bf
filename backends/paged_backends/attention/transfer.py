"""Copies of host arrays on the device."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor


def to_device(array: NDArray[Any], device: torch.device) -> Tensor:
    """Return ``array`` as a tensor on ``device``, without waiting for the device.

    On a CPU the tensor shares the memory of the array. A copy to a GPU is from pinned memory and is
    ordered in the current stream; the array may be changed at once.
    """
    tensor = torch.from_numpy(array)
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)
