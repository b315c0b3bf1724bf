"""The CUDA kernels keep the contract of attention components, emulated on the CPU."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, ClassVar

import pytest
import torch

from lanes import inherited, slow
from paged_backends.attention.cuda_attention import CudaAttention
from paged_backends.kernels.build import CannotCompile
from paged_backends.kernels.cpu.compiler import find_compiler
from paged_backends.kernels.cuda.emulation import EmulatedModule, Order
from paged_backends.kernels.cuda.targets import EmulatedTarget
from paged_core.interfaces.attention import AttentionBackend
from paged_testing import AttentionConformance


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    """Compile outside of the tests, in which a call may not wait long for another process."""
    with suppress(CannotCompile):  # the tests say so
        EmulatedModule.load(checked=False)


@inherited(
    "test_sequences_may_begin_with_the_same_blocks",
    "test_more_tokens_than_a_dimension_of_a_grid_may_have",
)
class OnEmulatedGpu(AttentionConformance):
    component: ClassVar[Mapping[str, Any]] = {"name": "cuda", "target": "emulated"}
    dtypes = ("bfloat16",)
    head_dims = (8, 16, 64, 80, 96, 128, 256)
    max_examples = 20
    max_seconds = 120
    order: ClassVar[Order] = "up"
    """In which order the threads of a block run."""

    def make(self) -> AttentionBackend:
        """Fail, not skip, where kernels do not compile and there is a compiler."""
        try:
            made = super().make()
        except pytest.skip.Exception:
            assert isinstance(find_compiler(), CannotCompile)
            raise
        assert isinstance(made, CudaAttention)
        assert isinstance(made.target, EmulatedTarget)
        made.target.emulation.set_order(self.order, seed=5)
        return made


class TestCuda(OnEmulatedGpu):
    pass


@inherited(
    "test_a_sequence_of_several_thousand_blocks",
    "test_the_same_batch_gives_the_same_bits",
    "test_a_result_hardly_depends_on_the_rest_of_the_batch",
)
class Brief(OnEmulatedGpu):
    """What takes seconds is among the long versions of tests."""

    max_examples = 10


class TestCudaFloat32(Brief):
    """Row by row: tensor cores would round."""

    dtypes = ("float32",)


@slow("test_more_tokens_than_a_dimension_of_a_grid_may_have")
class TestCudaFloat16(Brief):
    dtypes = ("float16",)


@slow("test_more_tokens_than_a_dimension_of_a_grid_may_have")
class TestCudaByChance(Brief):
    """What no barrier orders happens in any order."""

    order = "by chance"


@inherited("test_a_sequence_of_several_thousand_blocks")
class TestCudaDeterministic(OnEmulatedGpu):
    """In tiles alone."""

    deterministic = True
    keeps_bits = True
    order = "down"

    @pytest.mark.slow
    def test_more_tokens_than_a_dimension_of_a_grid_may_have(self) -> None:
        """Of one sequence: a tile for each of 66,000 takes minutes here."""
        layer = self.layer("bfloat16", num_heads=1, num_kv_heads=1, sliding_window=1)
        scene = self.scene(self.make(), layer, [(0, 66_000)], 14)
        (out,) = scene.run([0])
        torch.testing.assert_close(out[-1], scene.values[0][-1])


@pytest.mark.slow
class TestCudaFloat32Deterministic(Brief):
    dtypes = ("float32",)
    deterministic = True
    keeps_bits = True


class TestCudaWarpgroups(TestCudaDeterministic):
    """Everything in tiles of warpgroups, where the head dimension has them."""

    component: ClassVar[Mapping[str, Any]] = {
        "name": "cuda",
        "target": "emulated",
        "prefill_tile": "wgmma",
    }
    head_dims = (8, 40, 64, 80, 104, 128)
    max_examples = 10
    order = "by chance"


class TestCudaFloat8(Brief):
    kv_cache_dtype = "fp8_e4m3"


@pytest.mark.slow
class TestCudaFloat32Float8(Brief):
    dtypes = ("float32",)
    kv_cache_dtype = "fp8_e4m3"
