"""The Triton kernels, interpreted on the CPU, keep the contract of an attention component."""

from __future__ import annotations

from typing import Any

import pytest

from paged_backends.attention.triton_obstacle import is_interpreted
from paged_core.testing import AttentionConformance
from paged_core.testing.attention_scene import Scene

pytestmark = pytest.mark.skipif(
    not is_interpreted(),
    reason="there is a GPU, on which tests/gpu/test_triton_attention.py runs the kernels",
)


class WritesOnly:
    """Writes the tokens of a batch into the cache, and does not attend."""

    def __init__(self, layer: Any) -> None:
        self._layer = layer

    def forward(self, query: Any, key: Any, value: Any, plan: Any, /) -> Any:
        self._layer.write(key, value, plan)
        return query


class Interpreted(AttentionConformance):
    component = "triton"
    max_examples = 10

    def scene(self, *args: Any) -> Scene:
        """What is cached before a scene is only written: the interpreter is slow."""
        scene = super().scene(*args)
        scene._writer = WritesOnly(scene._writer)
        return scene


class TestTriton(Interpreted):
    pass


class TestTritonFloat8(Interpreted):
    dtypes = ("bfloat16",)
    kv_cache_dtype = "fp8_e4m3"


class TestTritonInTiles(Interpreted):
    dtypes = ("bfloat16",)
    deterministic = True
    keeps_bits = True
