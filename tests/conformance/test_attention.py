"""The attention components keep their contract, on every instruction set that there is here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

from emulation.cuda_module import EMULATED_CUDA
from marks import long
from paged_core.plugins.registry import Registry
from paged_testing import AttentionConformance
from paged_testing.engines import registry_with
from unit import cpu_kernels

pytestmark = [pytest.mark.heavy, pytest.mark.usefixtures("compiled_kernels")]


GRID = "test_more_tokens_than_a_dimension_of_a_grid_may_have"
"""A case that takes long, and is about GPUs."""


@long(GRID)
class TestTorch(AttentionConformance):
    component = "torch"
    dtypes = ("float32", "bfloat16", "float16")


@long(
    GRID,
    "test_a_sequence_of_several_thousand_blocks",
    "test_sequences_may_begin_with_the_same_blocks",
    "test_equals_dense_attention_on_long_sequences",
)
class TestTorchDeterministic(AttentionConformance):
    component = "torch"
    deterministic = True
    keeps_bits = True
    max_seconds = 120  # a call computes thousands of sequences one after another


@long(
    GRID,
    "test_a_sequence_of_several_thousand_blocks",
    "test_sequences_may_begin_with_the_same_blocks",
)
class TestTorchFloat8(AttentionConformance):
    component = "torch"
    dtypes: ClassVar[tuple[str, ...]] = ("bfloat16",)
    kv_cache_dtype = "fp8_e4m3"


@pytest.mark.long
class TestTorchFloat8InFloat32(TestTorchFloat8):
    dtypes = ("float32",)


@long(GRID, "test_holds_with_other_options")
class TestCpu(AttentionConformance):
    """Its options are instruction sets, of which each is compiled."""

    component: ClassVar[str | Mapping[str, Any]] = "cpu"
    keeps_bits = True


class TestCpuInt8(TestCpu):
    kv_cache_dtype = "int8"


class OnEachSet(TestCpu):
    """The best of this machine, and in the long run the others."""

    @pytest.fixture(
        autouse=True,
        params=[
            pytest.param(
                name, marks=[pytest.mark.long] * (name == "portable" or "emulated" in name)
            )
            for name in cpu_kernels.SETS
            if "vnni" not in name  # which is about products
        ],
    )
    def _instruction_set(self, request: pytest.FixtureRequest) -> None:
        chosen: Mapping[str, Any] = {"name": "cpu", "instruction_set": request.param}
        self.component = chosen  # type: ignore[misc]


@pytest.mark.long
class TestCpuOnEachSet(OnEachSet):
    pass


class TestCpuInTilesOnEachSet(OnEachSet):
    deterministic = True


@pytest.mark.long
class TestCpuInt8OnEachSet(OnEachSet):
    kv_cache_dtype = "int8"


@pytest.mark.long
class TestCpuInt8InTiles(TestCpuInt8):
    deterministic = True


@long(GRID, "test_a_sequence_of_several_thousand_blocks", "test_heads_of_any_dimension_and_number")
class TestHybrid(AttentionConformance):
    component: ClassVar[Mapping[str, Any]] = {
        **{"name": "hybrid", "prefill": "torch"},
        "decode": {"name": "torch"},
    }
    dtypes = ("float32",)
    head_dims = (1, 6, 16, 33, 64, 80)


@pytest.mark.long
class TestHybridOfTwo(AttentionConformance):
    """Two components write and read one cache."""

    component: ClassVar[Mapping[str, Any]] = {
        **{"name": "hybrid", "prefill": {"name": "emulated", "order": "down"}},
        "decode": "emulated",
    }
    dtypes = ("bfloat16",)
    head_dims = (64, 80, 96, 128, 256)
    max_seconds = 120

    def make_registry(self) -> Registry:
        return registry_with(EMULATED_CUDA)
