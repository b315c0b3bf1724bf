"""First-party runners pass the conformance class of their slot."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest

from marks import long
from paged_testing import RunnerConformance
from unit.cpu_kernels import SETS, load

pytestmark = [pytest.mark.heavy, pytest.mark.usefixtures("compiled_kernels")]
CHUNKS = "test_logits_are_the_same_in_any_chunks"
"""Cases that take the most time."""
EVERY_SET = [pytest.param(name, marks=pytest.mark.long) for name in SETS]


class TestNative(RunnerConformance):
    component = "native"


class TestTransformers(RunnerConformance):
    component = "transformers"


class TestOnnxRuntime(RunnerConformance):
    component = "onnxruntime"


@long(CHUNKS)
class TestOnnxRuntimeWithA16BitCache(RunnerConformance):
    component = "onnxruntime"
    settings: ClassVar[dict[str, str]] = {"model": "demo", "dtype": "bfloat16"}
    tolerance = 0.5


class _Quantized(RunnerConformance):
    """Weights quantised at load; each test has a cache of them on disk."""

    @pytest.fixture(autouse=True)
    def _cache(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        # the cache of compiled kernels stays
        monkeypatch.setattr("paged_backends.quantization.disk_cache.cache_dir", lambda: tmp_path)


@long(CHUNKS)
class TestOnnxRuntimeInt4(_Quantized):
    """Float arithmetic: a token's logits do not depend on the others in its batch."""

    component: ClassVar[dict[str, Any]] = {
        "name": "onnxruntime",
        "quantization": "int4",
        "group_size": 64,
    }


class _NativeQuantized(_Quantized):
    """On every instruction set.

    Activations are rounded: what differs in its last bits, as attention over chunks may, can round
    to another code.
    """

    tolerance = 0.1
    component: ClassVar[dict[str, Any]]

    @pytest.fixture(autouse=True, params=["auto", *EVERY_SET])
    def _instruction_set(
        self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        load(request.param)
        component = {**self.component, "kernels": request.param}
        monkeypatch.setattr(type(self), "component", component)


class TestNativeInt8(_NativeQuantized):
    component: ClassVar[dict[str, Any]] = {"name": "native", "quantization": "int8"}


class TestNativeInt4(_NativeQuantized):
    component: ClassVar[dict[str, Any]] = {
        "name": "native",
        "quantization": "int4",
        "group_size": 64,
    }


@pytest.mark.long
class TestNativeInTriton(RunnerConformance):
    """On a machine without a GPU, Triton's interpreter executes the kernels."""

    component: ClassVar[dict[str, str]] = {"name": "native", "kernels": "triton"}
    max_seconds, num_uses = 600, 12  # it interprets each instruction
