"""Steps of several layers over one batch: what a benchmark of attention repeats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from paged_core.interfaces.attention import (
    AttentionBackend,
    AttentionBatch,
    LayerAttention,
    SupportsCacheLayout,
    SupportsGraphCapture,
)
from paged_core.interfaces.layer import LayerSpec
from paged_plugins.bench.attention_case import AttentionCase

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_SCALED = (96, 127)
"""Bytes that are a moderate number as well as a moderate scale in a cache of 8-bit floats."""


@dataclass(frozen=True, slots=True)
class AttentionRun:
    """A step of a component, over several layers with a KV cache each."""

    backend: AttentionBackend
    batch: AttentionBatch
    layers: Sequence[LayerAttention]
    query: Tensor
    """[T, heads, D]."""
    key: Tensor
    """[T, key/value heads, D]."""
    value: Tensor
    """As :attr:`key`."""

    @classmethod
    def make(
        cls,
        case: AttentionCase,
        backend: AttentionBackend,
        layer: LayerSpec,
        *,
        num_shared: int,
        num_layers: int,
    ) -> Self:
        """Return a run over random queries, and caches filled with random keys and values.

        Args:
            num_shared: cached tokens that all sequences share as a prefix.
        """
        import torch

        batch, num_blocks = case.batch(layer, num_shared)
        count = case.num_sequences * case.num_new
        generator = torch.Generator(layer.device).manual_seed(0)

        def random(num_heads: int) -> Tensor:
            shape = (count, num_heads, layer.head_dim)
            rows = torch.randn(shape, generator=generator, device=layer.device)
            return rows.to(getattr(torch, layer.dtype))

        caches = (_cache(backend, layer, num_blocks, generator) for _ in range(num_layers))
        return cls(
            backend=backend,
            batch=batch,
            layers=[backend.bind(layer, cache) for cache in caches],
            query=random(layer.num_heads),
            key=random(layer.num_kv_heads),
            value=random(layer.num_kv_heads),
        )

    def plan(self) -> Any:
        """Return the plan of the step."""
        return self.backend.plan(self.batch)

    def forward(self, plan: Any) -> None:
        """Run the layers; a GPU may still compute afterwards."""
        for layer in self.layers:
            layer.forward(self.query, self.key, self.value, plan)

    def captured(self) -> Callable[[], None] | None:
        """Return a function that replays the layers from a CUDA graph; ``None`` where they are not
        on CUDA, the step does not decode, or the component does not support that."""
        import torch

        backend, device = self.backend, self.query.device
        if device.type != "cuda" or self.batch.max_query_len > 1:
            return None
        if not isinstance(backend, SupportsGraphCapture):
            return None
        plan = backend.plan_capture(self.batch)
        backend.update_capture(plan, self.batch)
        with torch.cuda.device(device):
            self.forward(plan)  # compiles and loads what is compiled and loaded on first use
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self.forward(plan)
        return _Captured(graph, plan)


@dataclass(frozen=True, slots=True)
class _Captured:
    """A graph, and the plan whose memory it reads; calling it replays the graph."""

    graph: torch.cuda.CUDAGraph
    plan: Any

    def __call__(self) -> None:
        self.graph.replay()


def _cache(backend: AttentionBackend, layer: LayerSpec, num_blocks: int, generator: Any) -> Any:
    """Return a cache of random contents; one of a layout of its own is as it was allocated,
    unless it is a tensor."""
    import torch

    if isinstance(backend, SupportsCacheLayout):
        cache = backend.allocate_cache(layer, num_blocks, layer.device)
    else:
        stored = layer.dtype if layer.kv_cache_dtype == "auto" else "uint8"
        shape = backend.cache_shape(layer, num_blocks)
        cache = torch.empty(shape, dtype=getattr(torch, stored), device=layer.device)
    if isinstance(cache, torch.Tensor):
        if cache.is_floating_point() and cache.element_size() > 1:
            cache.normal_(generator=generator)
        else:
            cache.view(torch.uint8).random_(*_SCALED, generator=generator)
    return cache
