"""Targets of the kernels: the GPUs that PyTorch finds."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cached_property
from typing import Protocol

import torch

from paged_backends.kernels.build import CannotCompile
from paged_backends.kernels.cuda.driver import Context, Driver, GpuModule
from paged_backends.kernels.cuda.kernel import GPU_GROUPS, KernelModule, Variant
from paged_backends.kernels.cuda.toolkit import find_compilers, load_variant
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


class Target(Protocol):
    """Machine that runs the kernels."""

    @property
    def groups(self) -> Sequence[int]:
        """Groups of the variants that there are."""

    def problem(self, device: torch.device, /) -> str | None:
        """Return why it does not serve a device, or ``None``."""

    def multiprocessors(self, device: torch.device, /) -> int:
        """Return how many a device has."""

    def warpgroup_problem(self, device: torch.device, /) -> str | None:
        """Return why a device has no products of warpgroups, or ``None``."""

    def module(self, variant: Variant, device: torch.device, /) -> KernelModule:
        """Return kernels, compiled on first use.

        Raises:
            CannotCompile: there is no compiler, or it fails.
            KernelError: the driver refuses to load them.
        """


class GpuTarget:
    """NVIDIA's GPUs."""

    groups = GPU_GROUPS

    def __init__(self) -> None:
        self._contexts: dict[int, Context] = {}
        self._modules: dict[tuple[Variant, int], GpuModule] = {}

    def problem(self, device: torch.device, /) -> str | None:
        """See :class:`Target`."""
        if device.type != "cuda":
            return f"it computes on CUDA devices, and the model is on {device}"
        return device_problem(device.index)

    def multiprocessors(self, device: torch.device, /) -> int:
        """See :class:`Target`."""
        return int(torch.cuda.get_device_properties(device).multi_processor_count)

    def warpgroup_problem(self, device: torch.device, /) -> str | None:
        """See :class:`Target`."""
        capability = torch.cuda.get_device_capability(device)
        if capability == (9, 0):
            return None
        return (
            "products of warpgroups need compute capability 9.0, and "
            f"{torch.cuda.get_device_name(device)} has {dotted(capability)}"
        )

    def module(self, variant: Variant, device: torch.device, /) -> GpuModule:
        """See :class:`Target`."""
        index = torch.cuda.current_device() if device.index is None else device.index
        key = variant, index
        if key not in self._modules:
            context = self._context(index)
            self._modules[key] = load_variant(
                variant, context, architecture(index), find_compilers()
            )
        return self._modules[key]

    @cached_property
    def _driver(self) -> Driver:
        return Driver()

    def _context(self, index: int) -> Context:
        if index not in self._contexts:
            self._contexts[index] = Context(self._driver, index)
        return self._contexts[index]


def unavailable_reason() -> str | None:
    """Return why kernels cannot run on this machine, or ``None``; nothing is compiled.

    The backend looks at the GPU of a layer when it is shown one.
    """
    if os.name != "posix":
        return "the kernels are compiled on Linux only; attention 'torch' needs no compiler"
    problem = device_problem(0)
    if problem is not None:
        return problem
    found = find_compilers()
    return str(found) if isinstance(found, CannotCompile) else None


def details() -> str:
    """Return the GPU and its compiler."""
    compilers = find_compilers()
    by = "nothing" if isinstance(compilers, CannotCompile) else compilers[0].path
    return f"{describe(0)}, compiled by {by}"
