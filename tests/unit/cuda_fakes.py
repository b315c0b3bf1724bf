"""A CUDA driver and an NVRTC that need no GPU, compiled from ``fake_cuda``, for tests."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from paged_backends.kernels.build import Build, CannotCompile, library
from paged_backends.kernels.cpu.compiler import CppCompiler
from paged_backends.kernels.cuda.driver import Context, Driver, GpuModule

FOLDER = Path(__file__).parent / "fake_cuda"


def fake_library(name: str) -> Path:
    """Return a fake, ``libcuda`` or ``libnvrtc``; the test is skipped without a C++ compiler."""
    flags = ("-std=c++17", "-fPIC", "-O1")
    build = Build(name=f"fake-{name}", sources=FOLDER, units=(f"{name}.cpp",), flags=flags)
    try:
        return library(build, CppCompiler.find())
    except CannotCompile as error:
        pytest.skip(str(error))


def image(*kernels: str) -> bytes:
    """Return what the fake driver takes for code: lines of a name and four numbers."""
    return b"\x7fELF" + "\n".join(kernels).encode()


@dataclass(frozen=True)
class Launch:
    """A launch as the fake driver noted it."""

    kernel: str
    device: int
    grid: tuple[int, int, int]
    threads: int
    shared_bytes: int
    stream: int
    argument: bytes


class FakeDriver(Driver):
    """The binding of the driver, over the fake."""

    def __init__(self) -> None:
        self.path = fake_library("libcuda")
        super().__init__(self.path)
        self._fake = ctypes.CDLL(str(self.path))
        self._fake.fake_launch.restype = ctypes.c_char_p
        list(self.launches())

    def launches(self) -> Iterator[Launch]:
        """Take the launches that were noted."""
        while note := self._fake.fake_launch():
            kernel, *numbers, argument = note.decode().split(" ")
            device, x, y, z, threads, shared_bytes, stream = map(int, numbers)
            grid = (x, y, z)
            yield Launch(
                kernel, device, grid, threads, shared_bytes, stream, bytes.fromhex(argument)
            )

    def depth(self) -> int:
        """Number of contexts that this thread has made current."""
        return int(self._fake.fake_depth())


class FakeModule(GpuModule):
    """A module whose stream is a number, since PyTorch has none here."""

    def stream(self) -> int:
        return 7


def fake_module(driver: FakeDriver, *kernels: str, device: int = 0) -> FakeModule:
    """Return a module of these kernels."""
    return FakeModule(Context(driver, device), [image(*kernels)], "fake code")
