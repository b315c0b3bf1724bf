"""The CUDA driver, called by ctypes: loading code for a GPU and launching it."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_uint32, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

from paged_backends.kernels.cuda.kernel import Argument, Geometry, Grid, KernelError

LIBRARY = "libcuda.so.1"

_SHARED_BYTES = 48 << 10
"""Dynamic shared memory that a thread block gets without asking."""
_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8

_ARGUMENTS: dict[str, list[Any]] = {
    "cuInit": [c_uint],
    "cuDeviceGet": [c_void_p, c_int],
    "cuDevicePrimaryCtxRetain": [c_void_p, c_int],
    "cuCtxGetCurrent": [c_void_p],
    "cuCtxPushCurrent_v2": [c_void_p],
    "cuCtxPopCurrent_v2": [c_void_p],
    "cuModuleLoadData": [c_void_p, c_char_p],
    "cuModuleGetFunction": [c_void_p, c_void_p, c_char_p],
    "cuModuleGetGlobal_v2": [c_void_p, c_void_p, c_void_p, c_char_p],
    "cuMemcpyDtoH_v2": [c_void_p, c_void_p, c_size_t],
    "cuFuncSetAttribute": [c_void_p, c_int, c_int],
    "cuOccupancyMaxActiveBlocksPerMultiprocessor": [c_void_p, c_void_p, c_int, c_size_t],
    "cuLaunchKernel": [c_void_p, *(c_uint,) * 7, c_void_p, c_void_p, c_void_p],
    "cuGetErrorName": [c_int, c_void_p],
    "cuGetErrorString": [c_int, c_void_p],
}


class Driver:
    """The functions of the driver that are needed."""

    def __init__(self, library: str | Path = LIBRARY) -> None:
        """
        Raises:
            KernelError: there is no driver, or it finds no device.
        """
        try:
            loaded = ctypes.CDLL(str(library))
            self.functions = {name: getattr(loaded, name) for name in _ARGUMENTS}
        except (OSError, AttributeError) as error:
            raise KernelError(f"the CUDA driver cannot be loaded: {error}") from error
        for name, arguments in _ARGUMENTS.items():
            self.functions[name].argtypes = arguments
        self.call("cuInit", 0)

    def call(self, name: str, *arguments: Any, subject: str = "") -> None:
        """Call a function of the driver.

        Args:
            subject: what it is about, for the message.

        Raises:
            KernelError: it returned an error.
        """
        if code := self.functions[name](*arguments):
            raise self.error(code, name, subject)

    def error(self, code: int, name: str, subject: str = "") -> KernelError:
        """Return the error that function ``name`` returned."""
        parts = [self._text("cuGetErrorName", code), self._text("cuGetErrorString", code)]
        said = ": ".join(part for part in parts if part) or f"error {code}"
        return KernelError(f"{subject + ': ' if subject else ''}{name} returned {said}")

    def _text(self, function: str, code: int) -> str:
        text = c_char_p()
        self.functions[function](code, byref(text))
        return (text.value or b"").decode(errors="replace")


class Context:
    """The context of a device that PyTorch uses too: its primary one."""

    def __init__(self, driver: Driver, device: int) -> None:
        """``device``: its number, as PyTorch counts."""
        self.driver = driver
        self.device = device
        ordinal, handle = c_int(), c_void_p()
        driver.call("cuDeviceGet", byref(ordinal), device, subject=f"device {device}")
        # it is kept: PyTorch keeps it as well, until the process ends
        driver.call("cuDevicePrimaryCtxRetain", byref(handle), ordinal, subject=f"device {device}")
        self._handle = handle.value
        self._get_current = driver.functions["cuCtxGetCurrent"]

    def enter(self) -> bool:
        """Make it the current one of this thread; return whether :meth:`leave` must be called."""
        current = c_void_p()
        self._get_current(byref(current))
        if current.value == self._handle:
            return False
        self.driver.call("cuCtxPushCurrent_v2", self._handle)
        return True

    def leave(self) -> None:
        """Make current what was so before :meth:`enter`."""
        popped = c_void_p()
        self.driver.call("cuCtxPopCurrent_v2", byref(popped))


@cache
def resident_blocks(function: int, threads: int, shared_bytes: int) -> int:
    """Return how many thread blocks of a loaded kernel a multiprocessor of the current device runs
    at once."""
    return _resident_blocks(Driver(), function, threads, shared_bytes)


def _resident_blocks(
    driver: Driver, function: object, threads: int, shared_bytes: int, subject: str = ""
) -> int:
    resident = c_int()
    driver.call(
        "cuOccupancyMaxActiveBlocksPerMultiprocessor",
        *(byref(resident), function, threads, shared_bytes),
        subject=subject,
    )
    return max(1, resident.value)


class GpuKernel:
    """A :class:`~paged_backends.kernels.cuda.kernel.Kernel` on a GPU."""

    def __init__(
        self, context: Context, name: str, function: int, geometry: Geometry, resident: int
    ) -> None:
        self.geometry = geometry
        self.resident = resident
        self._context = context
        self._name = name
        self._function = function
        self._block = geometry.threads, 1, 1, geometry.shared_bytes
        self._launch = context.driver.functions["cuLaunchKernel"]

    def launch(self, grid: Grid, argument: Argument, stream: int, /) -> None:
        """See :class:`~paged_backends.kernels.cuda.kernel.Kernel`."""
        context = self._context
        entered = context.enter()
        code = self._launch(self._function, *grid, *self._block, stream, argument.pointers, None)
        if entered:
            context.leave()
        if code:
            raise context.driver.error(
                code, "cuLaunchKernel", f"kernel {self._name}, grid {grid}, block {self._block}"
            )


class GpuModule:
    """The kernels of one variant, loaded to a device; a
    :class:`~paged_backends.kernels.cuda.kernel.KernelModule`."""

    declares = False

    def __init__(self, context: Context, code: Sequence[bytes], name: str) -> None:
        """
        Args:
            code: cubins.
            name: of them, for messages.

        Raises:
            KernelError: the driver refuses it.
        """
        self._context = context
        self._name = name
        self._kernels: dict[str, GpuKernel] = {}
        self._modules = [c_void_p() for _ in code]
        entered = context.enter()
        try:
            for module, cubin in zip(self._modules, code, strict=True):
                context.driver.call("cuModuleLoadData", byref(module), cubin, subject=name)
        finally:
            if entered:
                context.leave()

    def kernel(self, name: str, argument_bytes: int, /) -> GpuKernel:
        """See :class:`~paged_backends.kernels.cuda.kernel.KernelModule`."""
        if name not in self._kernels:
            entered = self._context.enter()
            try:
                self._kernels[name] = self._find(name, argument_bytes)
            finally:
                if entered:
                    self._context.leave()
        return self._kernels[name]

    def stream(self) -> int:
        """Return the stream that PyTorch uses on this device now."""
        from torch._C import _cuda_getCurrentRawStream  # makes no object, as torch.cuda does

        return int(_cuda_getCurrentRawStream(self._context.device))

    def declare(self, buffers: Any, /) -> None:
        """Nothing: a GPU does not look."""

    def _find(self, name: str, argument_bytes: int) -> GpuKernel:
        call = self._context.driver.call
        subject = f"kernel {name} of {self._name}"
        module, geometry = self._geometry(name, subject)
        geometry.check(name, argument_bytes)
        function = c_void_p()
        call("cuModuleGetFunction", byref(function), module, name.encode(), subject=subject)
        if geometry.shared_bytes > _SHARED_BYTES:
            wanted = (_MAX_DYNAMIC_SHARED_SIZE_BYTES, geometry.shared_bytes)
            call("cuFuncSetAttribute", function, *wanted, subject=subject)
        sizes = geometry.threads, geometry.shared_bytes
        resident = _resident_blocks(self._context.driver, function, *sizes, subject)
        address = int(function.value or 0)
        return GpuKernel(self._context, name, address, geometry, resident)

    def _geometry(self, name: str, subject: str) -> tuple[c_void_p, Geometry]:
        """The module that has the kernel, and what it says of it."""
        driver = self._context.driver
        address, size, numbers = c_void_p(), c_size_t(), (c_uint32 * 4)()
        symbol = f"{name}_geometry"
        for module in self._modules:
            find = driver.functions["cuModuleGetGlobal_v2"]
            code = find(byref(address), byref(size), module, symbol.encode())
            if not code:
                break
        else:
            raise driver.error(code, "cuModuleGetGlobal_v2", subject)
        if size.value != ctypes.sizeof(numbers):
            raise KernelError(f"{subject}: {symbol} has {size.value} bytes, not 16")
        driver.call("cuMemcpyDtoH_v2", numbers, address, size.value, subject=subject)
        return module, Geometry(*numbers)
