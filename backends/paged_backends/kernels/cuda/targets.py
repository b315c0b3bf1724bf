"""Where kernels run: on GPUs, or emulated on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Protocol

import torch

from paged_backends.kernels.cuda.devices import architecture, device_problem
from paged_backends.kernels.cuda.driver import Context, Driver, GpuModule
from paged_backends.kernels.cuda.emulation import EmulatedModule
from paged_backends.kernels.cuda.kernel import KernelModule
from paged_backends.kernels.cuda.toolkit import find_compilers, load_variant
from paged_backends.kernels.cuda.variant import EMULATED_GROUPS, GPU_GROUPS, Variant

_EMULATED_MULTIPROCESSORS = 3
"""Few: a batch of several sequences needs no splits, one of a single sequence does."""


class Target(Protocol):
    """What runs the kernels."""

    @property
    def groups(self) -> Sequence[int]:
        """Those of the variants that there are."""

    def problem(self, device: torch.device, /) -> str | None:
        """Return why it does not serve a device, or ``None``."""

    def multiprocessors(self, device: torch.device, /) -> int:
        """Return how many a device has."""

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
            return (
                f"it computes on CUDA devices, and the model is on {device}; for tests, "
                "`target: emulated` runs the kernels on the CPU"
            )
        return device_problem(device.index)

    def multiprocessors(self, device: torch.device, /) -> int:
        """See :class:`Target`."""
        return int(torch.cuda.get_device_properties(device).multi_processor_count)

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


class EmulatedTarget:
    """An emulation of a GPU on the CPU, for tests."""

    groups = EMULATED_GROUPS

    def __init__(self, *, checked: bool) -> None:
        """``checked``: look at every access to memory."""
        self._checked = checked

    @cached_property
    def emulation(self) -> EmulatedModule:
        """The kernels, compiled on first use.

        Raises:
            CannotCompile: there is no C++ compiler, or it fails.
        """
        return EmulatedModule.load(checked=self._checked)

    def problem(self, device: torch.device, /) -> str | None:
        """See :class:`Target`."""
        if device.type != "cpu":
            return f"it is emulated on CPUs, and the model is on {device}; set target to auto"
        return None

    def multiprocessors(self, device: torch.device, /) -> int:
        """See :class:`Target`."""
        return _EMULATED_MULTIPROCESSORS

    def module(self, variant: Variant, device: torch.device, /) -> EmulatedModule:
        """See :class:`Target`."""
        return self.emulation
