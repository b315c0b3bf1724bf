"""The Triton kernels, interpreted on the CPU, keep the contract of an attention component."""

from __future__ import annotations

from typing import Any

import pytest

from paged_backends.kernels.triton.availability import is_interpreted
from paged_core.testing import AttentionConformance
from paged_core.testing.attention_cases import SHAPES
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

    def test_more_tokens_than_a_dimension_of_a_grid_may_have(self) -> None:
        """Takes the interpreter minutes; tests/unit/test_triton_attention.py looks at the grids."""
        pytest.skip("the interpreter has no grid; tests/gpu runs it, and a unit test bounds grids")


class TestTriton(Interpreted):
    dtypes = ("float32",)


class TestTritonFloat8(Interpreted):
    dtypes = ("bfloat16",)
    kv_cache_dtype = "fp8_e4m3"
    max_examples = 5

    @pytest.mark.slow
    @pytest.mark.parametrize("changes", SHAPES.values(), ids=SHAPES)
    def test_sequences_may_begin_with_the_same_blocks(self, changes: dict[str, Any]) -> None:
        super().test_sequences_may_begin_with_the_same_blocks(changes)


@pytest.mark.slow
class TestTritonInHalf(Interpreted):
    dtypes = ("bfloat16", "float16")


@pytest.mark.slow
class TestTritonInTiles(Interpreted):
    """What is shown in short by tests/unit/test_triton_attention.py."""

    dtypes = ("bfloat16",)
    deterministic = True
    keeps_bits = True
