"""The CUDA kernels compiled for the CPU, and component ``emulated``: ``cuda`` over them.

Every thread of a block is a fiber; see ``simt``. In the checked build, every access to memory is
looked at.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from contextlib import suppress
from ctypes import c_char_p, c_int, c_size_t, c_uint, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from paged_backends.attention.cuda_attention import CudaAttention
from paged_backends.attention.settings import CudaSettings
from paged_backends.kernels.build import Build, CannotCompile, library
from paged_backends.kernels.cpu.compiler import CppCompiler, find_compiler
from paged_backends.kernels.cuda.kernel import (
    DEVICE_SOURCES,
    SOURCES,
    Argument,
    Geometry,
    Grid,
    KernelError,
    Variant,
)
from paged_core.engine.contexts import AttentionContext
from paged_core.plugins.component import Component

SIMT = Path(__file__).parent / "simt"
"""Folder of what makes the kernels compile for a CPU, in the place of ``kernels/cuda/device``."""
INCLUDES = (SIMT, DEVICE_SOURCES, SOURCES)

Order = Literal["up", "down", "by chance"]
"""In which order the threads of a block run between two barriers."""

_ORDERS: Mapping[Order, int] = {"up": 0, "down": 1, "by chance": 2}
_FLAGS = ("-std=c++17", "-fPIC", "-fvisibility=hidden", "-w")
_FAST = ("-O1",)
_CHECKED = ("-O1", "-g1", "-DSIMT_CHECK", "-ftrivial-auto-var-init=pattern")
WATCHED = ("-fsanitize=thread,alignment,bounds,signed-integer-overflow",)
"""The compiler then calls a function at every access; the shim has these, no library is linked."""
_UNCHECKED = "host_float16.cu"
"""Left out of the checked build, which takes long to compile: what it does, bfloat16 does too."""


@dataclass(frozen=True, slots=True)
class EmulationCompiler:
    """A C++ compiler of CUDA sources; see :class:`~paged_backends.kernels.build.Compiler`."""

    cpp: CppCompiler
    kernel_flags: tuple[str, ...]
    """Flags of kernels; the shim is compiled without."""

    @property
    def identity(self) -> tuple[str, ...]:
        """Identity of the C++ compiler, and the flags."""
        return (*self.cpp.identity, *self.kernel_flags)

    def build(self, sources: Sequence[Path], flags: Sequence[str], target: Path, /) -> None:
        """See :class:`~paged_backends.kernels.build.Compiler`."""
        kernels = (*flags, *self.kernel_flags, "-x", "c++")
        units = [(path, kernels if path.suffix == ".cu" else flags) for path in sources]
        self.cpp.build_units(units, flags, target)


def emulation_build(*, checked: bool) -> Build:
    """Return the build of all kernels for the CPU; ``checked``: without those of float16."""
    shim = ["runtime.cpp", "warpgroup.cpp", *(["check.cpp"] if checked else [])]
    kernels = {path.name for path in SIMT.glob("host_*.cu")}
    if checked:
        kernels.remove(_UNCHECKED)
    return Build(
        name=f"cuda-emulated{'_checked' if checked else ''}",
        sources=SIMT,
        units=(*sorted(kernels), *shim),
        flags=(*_FLAGS, *(_CHECKED if checked else _FAST)),
        includes=INCLUDES,
    )


class EmulatedKernel:
    """A :class:`~paged_backends.kernels.cuda.kernel.Kernel` that runs on the CPU, at once."""

    resident = 4

    def __init__(self, loaded: ctypes.CDLL, name: str, geometry: Geometry) -> None:
        self.geometry = geometry
        self._name = name
        self._launch = loaded.simt_launch
        self._error = loaded.simt_error
        self._fixed = name.encode(), geometry.threads, geometry.shared_bytes

    def launch(self, grid: Grid, argument: Argument, stream: int, /) -> None:
        """See :class:`~paged_backends.kernels.cuda.kernel.Kernel`."""
        name, threads, shared_bytes = self._fixed
        if self._launch(name, *grid, threads, shared_bytes, argument.address):
            said = self._error() or b"it failed without a message"
            raise KernelError(f"kernel {self._name}: {said.decode(errors='replace')}")


class EmulatedModule:
    """All kernels, in a library for the CPU; a
    :class:`~paged_backends.kernels.cuda.kernel.KernelModule`."""

    def __init__(self, path: Path) -> None:
        """
        Raises:
            CannotCompile: the library cannot be loaded.
        """
        try:
            self._loaded = ctypes.CDLL(str(path))
        except OSError as error:
            raise CannotCompile(f"the emulated kernels cannot be loaded: {error}") from error
        self._loaded.simt_launch.argtypes = [c_char_p, *(c_uint,) * 5, c_void_p]
        self._loaded.simt_error.restype = c_char_p
        self._loaded.simt_order.argtypes = [c_int, c_uint64]
        self._loaded.simt_declare.argtypes = [c_char_p, c_void_p, c_size_t]
        self.declares = bool(self._loaded.simt_is_checked())
        self._kernels: dict[str, EmulatedKernel] = {}

    @classmethod
    def load(cls, *, checked: bool) -> EmulatedModule:
        """Load the library, compiled first if it is not in the cache.

        Raises:
            CannotCompile: there is no C++ compiler, or it fails.
        """
        found = find_compiler()
        compiler = (
            EmulationCompiler(found, WATCHED if checked else ())
            if isinstance(found, CppCompiler)
            else found
        )
        return cls(library(emulation_build(checked=checked), compiler))

    def kernel(self, name: str, argument_bytes: int, /) -> EmulatedKernel:
        """See :class:`~paged_backends.kernels.cuda.kernel.KernelModule`."""
        if name not in self._kernels:
            try:
                numbers = (c_uint32 * 4).in_dll(self._loaded, f"{name}_geometry")
            except ValueError as error:
                raise KernelError(f"there is no kernel {name} in the emulation") from error
            geometry = Geometry(*numbers)
            geometry.check(name, argument_bytes)
            self._kernels[name] = EmulatedKernel(self._loaded, name, geometry)
        return self._kernels[name]

    def stream(self) -> int:
        """Return 0: kernels run at once."""
        return 0

    def declare(self, buffers: Mapping[str, Tensor | None], /) -> None:
        """See :class:`~paged_backends.kernels.cuda.kernel.KernelModule`."""
        self._loaded.simt_forget()
        for name, tensor in buffers.items():
            if tensor is not None and tensor.numel():
                # a view reaches from its first number to its last
                steps = zip(tensor.shape, tensor.stride(), strict=True)
                last = sum((size - 1) * stride for size, stride in steps)
                size = (last + 1) * tensor.element_size()
                self._loaded.simt_declare(name.encode(), tensor.data_ptr(), size)

    def set_order(self, order: Order, seed: int = 0) -> None:
        """Choose the order of threads, of all modules of this library."""
        self._loaded.simt_order(_ORDERS[order], seed)


_MULTIPROCESSORS = 3
"""Few: a batch of several sequences needs no splits, one of a single sequence does."""


class EmulatedTarget:
    """A :class:`~paged_backends.kernels.cuda.targets.Target` on the CPU."""

    groups = (1, 4)

    def __init__(self, *, checked: bool) -> None:
        self._checked = checked

    @cached_property
    def emulation(self) -> EmulatedModule:
        """The kernels, compiled on first use; CannotCompile if they cannot be."""
        return EmulatedModule.load(checked=self._checked)

    def problem(self, device: torch.device, /) -> str | None:
        return None if device.type == "cpu" else f"it is emulated on CPUs, not on {device}"

    def multiprocessors(self, device: torch.device, /) -> int:
        return _MULTIPROCESSORS

    def warpgroup_problem(self, device: torch.device, /) -> str | None:
        return None

    def module(self, variant: Variant, device: torch.device, /) -> EmulatedModule:
        return self.emulation


class EmulatedSettings(CudaSettings):
    name: Literal["emulated"] = "emulated"  # type: ignore[assignment]
    checked: bool = Field(False, description="look at every access to memory")
    order: Order = Field("up", description="of the threads of a block, between two barriers")


class EmulatedAttention(CudaAttention):
    """Component ``cuda`` on an emulated GPU."""

    def __init__(self, options: EmulatedSettings, context: AttentionContext) -> None:
        super().__init__(options, context)
        self.target: Any = EmulatedTarget(checked=options.checked)
        with suppress(CannotCompile):  # a layer is then refused with the reason
            self.target.emulation.set_order(options.order, seed=5)


def unavailable_reason() -> str | None:
    """Return why there is no emulation here, or ``None``."""
    found = find_compiler()
    return str(found) if isinstance(found, CannotCompile) else None


EMULATED_CUDA = Component(
    "attention",
    EmulatedSettings,
    "emulation.cuda_module:EmulatedAttention",
    rank=None,
    check="emulation.cuda_module:unavailable_reason",
    summary="our CUDA kernels on a CPU",
)
