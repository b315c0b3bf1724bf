"""Measures the attention of several components over a grid of batches and numbers of heads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

from paged_core.interfaces.attention import AttentionBackend
from paged_core.interfaces.layer import LayerSpec
from paged_plugins.bench.attention_case import AttentionCase
from paged_plugins.bench.attention_run import AttentionRun
from paged_plugins.bench.bare_attention import BareAttention, BareSdpa
from paged_plugins.bench.rates import Rates
from paged_plugins.bench.timing import seconds_on

WARM_UP = 1


@dataclass(slots=True)
class _Contender:
    """What runs a step of one component, and the seconds that every repeat takes."""

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
    """Batches to measure; those of a layer are measured in turns, repeat by repeat."""

    cases: Sequence[AttentionCase]
    num_shared: int
    """Cached tokens that all sequences share as a prefix."""
    num_layers: int | None
    """Layers to run in turn; ``None``: as many as exceed the caches of the device."""
    repeats: int
    rates: Rates | None
    """What the device can do at most; ``None``: unknown, and so are the shares."""

    def rows(
        self,
        layer: LayerSpec,
        parts: Mapping[str, AttentionBackend],
        bare: Sequence[BareAttention | BareSdpa],
        advance: Callable[[], None],
    ) -> Iterator[dict[str, Any]]:
        """Yield a row for every batch and component; of one that fails, it has an ``error``.

        Args:
            parts: components that serve the layer, by name.
            bare: libraries to call beside them.
            advance: called once for each batch and repeat.
        """
        for case in self.cases:
            yield from self._measured(case, layer, parts, bare, advance)

    def _measured(
        self,
        case: AttentionCase,
        layer: LayerSpec,
        parts: Mapping[str, AttentionBackend],
        bare: Sequence[BareAttention | BareSdpa],
        advance: Callable[[], None],
    ) -> Iterator[dict[str, Any]]:
        """Yield the rows of one batch; nothing is kept of it afterwards."""
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
