"""The cases of tests/conformance/test_cuda_kernels.py on a GPU."""

from __future__ import annotations

import pytest
import torch

from conformance.test_cuda_kernels import KernelCases
from paged_backends.kernels.cuda.targets import GpuTarget

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available(),
        reason=f"torch {torch.__version__} finds no CUDA device here",
    ),
]


class TestCudaKernels(KernelCases):
    target = GpuTarget()
    device = "cuda"
