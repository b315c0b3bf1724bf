"""Products of warpgroups read operands on a GPU where they do in the emulation."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from conformance.test_cuda_products import SOURCE, ProductCases
from paged_backends.kernels.build import Build, CannotCompile, library
from paged_backends.kernels.cuda.driver import Context, Driver, GpuModule
from paged_backends.kernels.cuda.kernel import SHIM_SOURCES, SOURCES
from paged_backends.kernels.cuda.targets import GpuTarget
from paged_backends.kernels.cuda.toolkit import find_compilers


@pytest.fixture
def products(tmp_path: Path) -> GpuModule:
    problem = GpuTarget().warpgroup_problem(torch.device("cuda", 0))
    if problem is not None:
        pytest.skip(problem)
    build = Build(
        name="products",
        sources=SOURCE.parent,
        units=(SOURCE.name,),
        flags=("--gpu-architecture=sm_90a", "--std=c++17"),
        includes=(SHIM_SOURCES, SOURCES),
        suffix=".cubin",
    )
    compilers = find_compilers()
    assert not isinstance(compilers, CannotCompile), str(compilers)
    torch.zeros(1, device="cuda")  # makes the context
    code = library(build, compilers[0], tmp_path).read_bytes()
    return GpuModule(Context(Driver(), 0), [code], build.name)


class TestOnGpu(ProductCases):
    device = "cuda"
