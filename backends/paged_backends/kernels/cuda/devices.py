"""The GPUs that PyTorch finds, and whether the kernels run on them."""

from __future__ import annotations

import torch

from paged_backends.kernels.nvidia import capability_problem, dotted, gpu_problem


def device_problem(index: int | None) -> str | None:
    """Return why a device cannot run the kernels, or ``None``; ``None`` is the current one."""
    problem = gpu_problem()
    if problem is not None:
        return problem
    capability = torch.cuda.get_device_capability(index)
    return capability_problem(capability, torch.cuda.get_device_name(index))


def architecture(index: int) -> str:
    """Return the device's, as compilers name it: ``sm_90``."""
    major, minor = torch.cuda.get_device_capability(index)
    return f"sm_{major}{minor}"


def describe(index: int | None) -> str:
    """Return the device's name and compute capability."""
    capability = torch.cuda.get_device_capability(index)
    return f"{torch.cuda.get_device_name(index)} of {dotted(capability)}"
