"""Scenes for the Triton kernels, launched as for a GPU that is not here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from paged_backends.attention.settings import TritonSettings
from paged_backends.attention.triton_attention import TritonAttention
from paged_backends.attention.triton_layer import Gpu, TritonLayer
from paged_core.engine.contexts import AttentionContext
from paged_core.interfaces.layer import LayerSpec
from paged_core.settings.schema import EngineSettings
from paged_testing.attention_scene import Scene
from unit.attention_calls import layer
from unit.writes_only import WritesOnly


class AbsentGpu(Gpu):
    """One that is not here: nothing is compiled, and a multiprocessor runs two programs."""

    def resident(self, compile_kernel: Any, /) -> int:
        return 2


A100, RTX_3090, H200 = AbsentGpu((8, 0), 108), AbsentGpu((8, 6), 82), AbsentGpu((9, 0), 132)

LAYER = layer(head_dim=32, dtype="float32")
FLOAT8 = replace(LAYER, dtype="bfloat16", kv_cache_dtype="fp8_e4m3")


class LaunchedFor(TritonAttention):
    """Launches what suits ``gpu``, by a layer of ``kind``."""

    def __init__(
        self, gpu: Gpu | None, *, deterministic: bool = False, kind: Any = TritonLayer
    ) -> None:
        context = AttentionContext(settings=EngineSettings(deterministic=deterministic))
        super().__init__(TritonSettings(), context)
        self._gpu, self._kind = gpu, kind

    def bind(self, layer: LayerSpec, cache: Any, /) -> Any:
        return self._kind(layer, cache, self._gpu)


def scene(
    backend: TritonAttention, layer: LayerSpec, chunks: Sequence[tuple[int, int]], seed: int = 0
) -> Scene:
    """A scene whose cached tokens are only written: the interpreter is slow."""
    made = Scene(backend, layer, chunks, seed)
    made._writer = WritesOnly(made._attention)
    return made
