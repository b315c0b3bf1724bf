"""The Triton kernels, interpreted on the CPU, keep the contract of an attention component."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from paged_backends.attention.triton_obstacle import is_interpreted
from paged_core.testing import AttentionConformance
from paged_core.testing.attention_scene import Scene
from unit.writes_only import WritesOnly

pytestmark = pytest.mark.skipif(
    not is_interpreted(),
    reason="there is a GPU, on which tests/gpu/test_triton_attention.py runs the kernels",
)


class Interpreted(AttentionConformance):
    component = "triton"
    max_examples = 8
    max_seconds = 60

    def scene(self, *args: Any) -> Scene:
        """What is cached before a scene is only written: the interpreter is slow."""
        scene = super().scene(*args)
        scene._writer = WritesOnly(scene._writer)
        return scene

    @pytest.mark.slow
    def test_more_tokens_than_a_dimension_of_a_grid_may_have(self) -> None:
        """As one sequence: 66,000 would take minutes, and the interpreter has no grid."""
        layer = self.layer(self.dtypes[0], num_heads=1, num_kv_heads=1, sliding_window=1)
        scene = self.scene(self.make(), layer, [(0, 66_000)], 14)
        (out,) = scene.run([0])
        np.testing.assert_allclose(out.float(), scene.values[0].float(), atol=1e-4)


class TestTriton(Interpreted):
    dtypes = ("float32",)


class TestTritonFloat8(Interpreted):
    dtypes = ("bfloat16",)
    kv_cache_dtype = "fp8_e4m3"
    max_examples = 5


@pytest.mark.slow
class TestTritonInHalf(Interpreted):
    dtypes = ("bfloat16", "float16")


@pytest.mark.slow
class TestTritonInTiles(Interpreted):
    """What is shown in short by tests/unit/test_triton_attention.py."""

    dtypes = ("bfloat16",)
    deterministic = True
    keeps_bits = True
