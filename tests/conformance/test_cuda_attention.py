"""The CUDA kernels keep the contract of attention components, emulated on the CPU."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, ClassVar

import pytest
import torch

from emulation.cuda_module import EMULATED_CUDA, EmulatedModule, unavailable_reason
from marks import long
from paged_backends.kernels.build import CannotCompile
from paged_core.interfaces.attention import AttentionBackend
from paged_core.plugins.registry import Registry
from paged_testing import AttentionConformance
from paged_testing.engines import registry_with

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    """Compile outside of the tests, in which a call may not wait long for another process."""
    with suppress(CannotCompile):  # the tests say so
        EmulatedModule.load(checked=False)


class OnEmulatedGpu(AttentionConformance):
    component: ClassVar[str | Mapping[str, Any]] = "emulated"
    dtypes = ("bfloat16",)
    head_dims = (8, 16, 64, 80, 96, 128, 256)
    max_seconds = 120

    def make_registry(self) -> Registry:
        return registry_with(EMULATED_CUDA)

    def other_settings(self) -> list[dict[str, Any]]:
        """None: kernels are compiled for those that the classes name."""
        return []

    def make(self) -> AttentionBackend:
        """Fail, not skip, where kernels do not compile and there is a compiler."""
        try:
            return super().make()
        except pytest.skip.Exception:
            assert unavailable_reason() is not None
            raise


@long(
    "test_more_tokens_than_a_dimension_of_a_grid_may_have",
    "test_sequences_may_begin_with_the_same_blocks",
    "test_a_sequence_of_several_thousand_blocks",
)
class TestCuda(OnEmulatedGpu):
    pass


@pytest.mark.long
class TestCudaFloat32(OnEmulatedGpu):
    """Row by row: tensor cores would round."""

    dtypes = ("float32",)


@pytest.mark.long
class TestCudaFloat16(OnEmulatedGpu):
    """Work that no barrier orders happens in any order."""

    component: ClassVar[Mapping[str, Any]] = {"name": "emulated", "order": "by chance"}
    dtypes = ("float16",)


@pytest.mark.long
class TestCudaDeterministic(OnEmulatedGpu):
    """In tiles alone."""

    component: ClassVar[Mapping[str, Any]] = {"name": "emulated", "order": "down"}
    deterministic = True
    keeps_bits = True

    def test_more_tokens_than_a_dimension_of_a_grid_may_have(self) -> None:
        """One sequence: a tile for each of 66,000 takes minutes here."""
        layer = self.layer("bfloat16", num_heads=1, num_kv_heads=1, sliding_window=1)
        scene = self.scene(self.make(), layer, [(0, 66_000)], 14)
        (out,) = scene.run([0])
        torch.testing.assert_close(out[-1], scene.values[0][-1])


@pytest.mark.long
class TestCudaWarpgroups(TestCudaDeterministic):
    """Everything in tiles of warpgroups, where the head dimension has them."""

    component: ClassVar[Mapping[str, Any]] = {
        **{"name": "emulated", "order": "by chance"},
        "prefill_tile": "wgmma",
    }
    head_dims = (8, 40, 64, 80, 104, 128)


@pytest.mark.long
class TestCudaFloat8(OnEmulatedGpu):
    kv_cache_dtype = "fp8_e4m3"
