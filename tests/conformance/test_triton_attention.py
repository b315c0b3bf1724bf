"""The Triton kernels, interpreted on the CPU, keep the contract of an attention component."""

from __future__ import annotations

from typing import Any

import pytest

from marks import long
from paged_backends.kernels.triton.availability import is_interpreted
from paged_core.interfaces.layer import LayerSpec
from paged_testing import AttentionConformance
from paged_testing.attention_scene import Scene
from unit.writes_only import WritesOnly

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.skipif(
        not is_interpreted(),
        reason="there is a GPU, on which tests/gpu/test_attention.py runs the kernels",
    ),
    pytest.mark.usefixtures("watched_accesses"),
]


class Interpreted(AttentionConformance):
    component = "triton"
    max_seconds = 60

    def layer(self, dtype: str, **changes: Any) -> LayerSpec:
        """A small layer with half of the heads, unless a case is about heads."""
        if not changes.keys() & {"num_heads", "num_kv_heads", "alibi_slopes", "sinks"}:
            changes |= {"num_heads": 2, "num_kv_heads": 1}
        return super().layer(dtype, **changes)

    def scene(self, *args: Any) -> Scene:
        """A scene whose cached tokens are only written: the interpreter is slow."""
        scene = super().scene(*args)
        scene._writer = WritesOnly(scene._writer)
        return scene

    def test_more_tokens_than_a_dimension_of_a_grid_may_have(self) -> None:
        """Takes the interpreter minutes; tests/unit/test_triton_attention.py looks at the grids."""
        pytest.skip("the interpreter has no grid; tests/gpu runs it, and a unit test bounds grids")

    def test_keeps_nothing_of_what_has_left(self) -> None:
        """Takes the interpreter minutes; the state of the component is as in `torch` and `cuda`."""
        pytest.skip("what the interpreter itself keeps would be counted; tests/gpu runs it")


@long("test_sequences_may_begin_with_the_same_blocks", "test_a_sequence_of_several_thousand_blocks")
class TestTriton(Interpreted):
    dtypes = ("float32",)


@pytest.mark.long
class TestTritonFloat8(Interpreted):
    dtypes = ("bfloat16",)
    kv_cache_dtype = "fp8_e4m3"


@pytest.mark.long
class TestTritonInHalf(Interpreted):
    dtypes = ("bfloat16", "float16")


@pytest.mark.long
class TestTritonInTiles(Interpreted):
    """Longer than the cases of tests/unit/test_triton_attention.py."""

    dtypes = ("bfloat16",)
    deterministic = True
    keeps_bits = True
