"""Tensor cores of a GPU find their operands where the emulation does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from conformance.test_simt import KERNELS, TensorCoreCases
from paged_backends.kernels.build import Build, CannotCompile, library
from paged_backends.kernels.cuda.driver import Context, Driver, GpuModule
from paged_backends.kernels.cuda.kernel import DEVICE_SOURCES, SOURCES
from paged_backends.kernels.cuda.targets import GpuTarget, architecture
from paged_backends.kernels.cuda.toolkit import find_compilers

pytestmark = pytest.mark.heavy


def compiled(name: str, architecture: str, folder: Path) -> GpuModule:
    build = Build(
        name=name,
        sources=KERNELS,
        units=(f"{name}.cu",),
        flags=(f"--gpu-architecture={architecture}", "--std=c++17"),
        includes=(DEVICE_SOURCES, SOURCES),
        suffix=".cubin",
    )
    compilers = find_compilers()
    assert not isinstance(compilers, CannotCompile), str(compilers)
    torch.zeros(1, device="cuda")  # makes the context
    code = library(build, compilers[0], folder).read_bytes()
    return GpuModule(Context(Driver(), 0), [code], name)


@pytest.fixture
def fragments(tmp_path: Path) -> GpuModule:
    return compiled("fragments", architecture(0), tmp_path)


@pytest.fixture
def products(tmp_path: Path) -> GpuModule:
    problem = GpuTarget().warpgroup_problem(torch.device("cuda", 0))
    if problem is not None:
        pytest.skip(problem)
    return compiled("products", "sm_90a", tmp_path)


class TestOnGpu(TensorCoreCases):
    device = "cuda"
