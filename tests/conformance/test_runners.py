"""First-party runners pass the conformance class of their slot."""

from __future__ import annotations

from typing import ClassVar

import pytest

from paged_core.testing import RunnerConformance


class TestNative(RunnerConformance):
    component = "native"


class TestTransformers(RunnerConformance):
    component = "transformers"


class TestOnnxRuntime(RunnerConformance):
    component = "onnxruntime"


class TestOnnxRuntimeWithA16BitCache(RunnerConformance):
    component = "onnxruntime"
    settings: ClassVar[dict[str, str]] = {"model": "demo", "dtype": "bfloat16"}
    tolerance = 0.5


@pytest.mark.slow
class TestNativeInTriton(RunnerConformance):
    """On a machine without a GPU, Triton's interpreter executes the kernels."""

    component: ClassVar[dict[str, str]] = {"name": "native", "kernels": "triton"}
