"""The cases of tests/conformance/test_cuda_kernels.py on a GPU."""

from __future__ import annotations

import pytest

from conformance.test_cuda_kernels import KernelCases
from paged_backends.kernels.cuda.targets import GpuTarget

pytestmark = pytest.mark.heavy


class TestCudaKernels(KernelCases):
    target = GpuTarget()
    device = "cuda"
