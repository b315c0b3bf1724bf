"""Steps of attention over several layers, measured over a grid of batches and components."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import prod
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from paged_core.interfaces.attention import (
    AttentionBackend,
    AttentionBatch,
    LayerAttention,
    SupportsCacheLayout,
    SupportsGraphCapture,
)
from paged_core.interfaces.layer import LayerSpec
from paged_plugins.bench.attention_case import AttentionCase, BareAttention, BareSdpa, random_rows
from paged_plugins.bench.device import Rates, seconds_on

if TYPE_CHECKING:
    import torch
    from torch import Tensor

WARM_UP = 1
_SCALED = (96, 127)
"""Bytes that are a moderate number as well as a moderate scale in a cache of 8-bit floats."""


@dataclass(slots=True)
class _Contender:
    """Steps of one component, and the seconds that every repeat takes."""

    name: str
    plan: Callable[[], Any]
    forward: Callable[[Any], object]
    """Runs all layers by a plan."""
    replay: Callable[[], object] | None
    """The same layers from a CUDA graph, where there is one."""
    planned: list[float] = field(default_factory=list)
    launched: list[float] = field(default_factory=list)
    replayed: list[float] = field(default_factory=list)

    def repeat(self, device: str) -> None:
        """Plan and run a step, and replay it; the host's time of planning, the device's of all
        layers."""
        started = perf_counter()
        plan = self.plan()
        self.planned.append(perf_counter() - started)
        self.launched.append(seconds_on(device, lambda: self.forward(plan)))
        if self.replay is not None:
            self.replayed.append(seconds_on(device, self.replay))


@dataclass(frozen=True, slots=True)
class AttentionGrid:
    """Measurement of batches: their components in turns, repeat by repeat."""

    num_shared: int
    """Cached tokens that all sequences share as a prefix."""
    num_layers: int | None
    """Layers to run in turn; ``None``: as many as exceed the caches of the device."""
    repeats: int
    rates: Rates | None
    """Limits of the device; ``None``: unknown, and so are the shares."""

    def rows(
        self,
        case: AttentionCase,
        layer: LayerSpec,
        parts: Mapping[str, AttentionBackend],
        bare: Sequence[BareAttention | BareSdpa],
        advance: Callable[[], None],
    ) -> Iterator[dict[str, Any]]:
        """Yield a row of a batch for every component; of one that fails, it has an ``error``.

        Nothing is kept of the batch afterwards.

        Args:
            parts: components that serve the layer, by name.
            bare: libraries to call beside them.
            advance: called once for each repeat.
        """
        makers = {name: partial(self._component, name, part) for name, part in parts.items()}
        makers |= {f"bare {one.name}": partial(self._library, one) for one in bare}
        made: list[_Contender] = []
        errors: dict[str, str] = {}
        for name, make in makers.items():
            try:
                made.append(make(case, layer))
            except Exception as error:  # noqa: BLE001 - one component must not take the others
                errors[name] = told(error)
        for _ in range(self.repeats + WARM_UP):
            for contender in list(made):
                try:
                    contender.repeat(layer.device)
                except Exception as error:  # noqa: BLE001 - likewise
                    errors[contender.name] = told(error)
                    made.remove(contender)
            advance()
        for contender in made:
            figures = self._figures(case, layer, contender)
            yield self._case(case, layer, contender.name) | figures
        for name, reason in errors.items():
            yield self._case(case, layer, name) | {"error": reason}

    def _layers(self, case: AttentionCase, layer: LayerSpec) -> int:
        return self.num_layers or case.num_layers(layer)

    def _component(
        self, name: str, backend: AttentionBackend, case: AttentionCase, layer: LayerSpec
    ) -> _Contender:
        run = AttentionRun.make(
            case,
            backend,
            layer,
            num_shared=self.num_shared,
            num_layers=self._layers(case, layer),
        )
        return _Contender(name, run.plan, run.forward, run.captured())

    def _library(
        self, called: BareAttention | BareSdpa, case: AttentionCase, layer: LayerSpec
    ) -> _Contender:
        layers = [called.run(case, layer) for _ in range(self._layers(case, layer))]

        def forward(_: object) -> None:
            for run in layers:
                run()

        return _Contender(f"bare {called.name}", lambda: None, forward, None)

    def _case(self, case: AttentionCase, layer: LayerSpec, name: str) -> dict[str, Any]:
        return {
            "component": name,
            "batch": str(case),
            "num_sequences": case.num_sequences,
            "cached": case.num_cached,
            "new": case.num_new,
            "shared_prefix": min(self.num_shared, case.num_cached),
            "num_heads": layer.num_heads,
            "num_kv_heads": layer.num_kv_heads,
            "head_dim": layer.head_dim,
            "block_size": layer.block_size,
            "dtype": layer.dtype,
            "kv_cache_dtype": layer.kv_cache_dtype,
        }

    def _figures(
        self, case: AttentionCase, layer: LayerSpec, contender: _Contender
    ) -> dict[str, Any]:
        """Return medians; rates and shares are those of the graph where there is one."""
        count = self._layers(case, layer)
        launched = median(contender.launched[WARM_UP:]) / count
        replayed = median(contender.replayed[WARM_UP:]) / count if contender.replayed else None
        seconds = launched if replayed is None else replayed
        read = case.read_bytes(layer, self.num_shared) / seconds
        computed = case.operations(layer) / seconds
        rates = self.rates
        return {
            "us_per_layer": round(launched * 1e6, 2),
            "us_per_layer_captured": None if replayed is None else round(replayed * 1e6, 2),
            "us_plan": round(median(contender.planned[WARM_UP:]) * 1e6, 2),
            "bytes_per_s": round(read),
            "operations_per_s": round(computed),
            "share_of_copy": None if rates is None else round(read / rates.copy, 4),
            "share_of_matmul": None if rates is None else round(computed / rates.sums, 4),
            "repeats": self.repeats,
        }


def told(error: Exception) -> str:
    """Return the kind and the first line of an error."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:300]}"


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
        generator = torch.Generator(layer.device).manual_seed(0)
        caches = (_cache(backend, layer, num_blocks, generator) for _ in range(num_layers))
        layers = [backend.bind(layer, cache) for cache in caches]
        return cls(backend, batch, layers, *random_rows(case, layer, case.num_new))

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
        dtype: torch.dtype = getattr(torch, stored)
        if layer.device == "cpu":  # in huge pages, which numpy asks for, as that of an engine
            memory = np.zeros(prod(shape) * dtype.itemsize, np.uint8)
            cache = torch.from_numpy(memory).view(dtype).view(shape)
        else:
            cache = torch.empty(shape, dtype=dtype, device=layer.device)
    if isinstance(cache, torch.Tensor):
        if cache.is_floating_point() and cache.element_size() > 1:
            cache.normal_(generator=generator)
        else:
            cache.view(torch.uint8).random_(*_SCALED, generator=generator)
    return cache
