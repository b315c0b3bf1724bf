"""Fragments of tensor cores lie on a GPU where they do in the emulation."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from conformance.test_cuda_fragments import SOURCE, FragmentCases
from paged_backends.kernels.build import Build, CannotCompile, library
from paged_backends.kernels.cuda.driver import Context, Driver, GpuModule
from paged_backends.kernels.cuda.kernel import SHIM_SOURCES
from paged_backends.kernels.cuda.targets import architecture
from paged_backends.kernels.cuda.toolkit import find_compilers


@pytest.fixture
def module(tmp_path: Path) -> GpuModule:
    build = Build(
        name="fragments",
        sources=SOURCE.parent,
        units=(SOURCE.name,),
        flags=(f"--gpu-architecture={architecture(0)}", "--std=c++17"),
        includes=(SHIM_SOURCES,),
        suffix=".cubin",
    )
    compilers = find_compilers()
    assert not isinstance(compilers, CannotCompile), str(compilers)
    torch.zeros(1, device="cuda")  # makes the context
    code = library(build, compilers[0], tmp_path).read_bytes()
    return GpuModule(Context(Driver(), 0), [code], build.name)


class TestOnGpu(FragmentCases):
    device = "cuda"
