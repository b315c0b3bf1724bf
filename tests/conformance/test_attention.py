"""The attention components keep their contract, on every instruction set that there is here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from lanes import inherited, slow
from paged_testing import AttentionConformance
from unit import cpu_kernels

pytestmark = pytest.mark.usefixtures("compiled_kernels")
SETS = [
    pytest.param(name, marks=() if name == "portable" else pytest.mark.lane("instruction-sets"))
    for name in cpu_kernels.SETS
    if "vnni" not in name  # which is for products with quantised weights
]


class TestTorch(AttentionConformance):
    component = "torch"
    dtypes = ("float32", "bfloat16", "float16")


@slow(
    "test_more_tokens_than_a_dimension_of_a_grid_may_have",
    "test_a_sequence_of_several_thousand_blocks",
)
class TestTorchDeterministic(AttentionConformance):
    component = "torch"
    deterministic = True
    keeps_bits = True
    max_examples = 15
    max_seconds = 120  # a call computes thousands of sequences one after another


@slow("test_more_tokens_than_a_dimension_of_a_grid_may_have")
class TestTorchFloat8(AttentionConformance):
    component = "torch"
    dtypes = ("float32", "bfloat16")
    kv_cache_dtype = "fp8_e4m3"


@inherited("test_more_tokens_than_a_dimension_of_a_grid_may_have")
class OnCpu(AttentionConformance):
    """The best instruction set, and below the portable one; the others are in a lane of their
    own."""

    keeps_bits = True


class TestCpu(OnCpu):
    component = "cpu"


class TestCpuInTiles(OnCpu):
    component = "cpu"
    deterministic = True


class OnCpuInt8(OnCpu):
    kv_cache_dtype = "int8"
    max_examples = 15


class TestCpuInt8(OnCpuInt8):
    component = "cpu"


@pytest.mark.slow
class TestCpuInt8InTiles(OnCpuInt8):
    component = "cpu"
    deterministic = True


class OnEachSet(OnCpu):
    component = "cpu"

    @pytest.fixture(autouse=True, params=SETS)
    def _instruction_set(self, request: pytest.FixtureRequest) -> None:
        chosen: Mapping[str, Any] = {"name": "cpu", "instruction_set": request.param}
        self.component = chosen  # type: ignore[misc]


class TestCpuOnEachSet(OnEachSet):
    pass


@pytest.mark.slow
class TestCpuInt8OnEachSet(OnEachSet, OnCpuInt8):
    pass
