"""Measures the attention of several components over a grid of batches and numbers of heads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
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
    """What runs a step of one component, and the seconds per layer of every repeat."""

    name: str
    step: Callable[[], object]
    replay: Callable[[], object] | None
    """The same step from a CUDA graph, where there is one."""
    device: str
    num_layers: int
    launched: list[float] = field(default_factory=list)
    replayed: list[float] = field(default_factory=list)

    def repeat(self) -> None:
        """Run and measure a step, with launches and from the graph."""
        self.launched.append(seconds_on(self.device, self.step) / self.num_layers)
        if self.replay is not None:
            self.replayed.append(seconds_on(self.device, self.replay) / self.num_layers)


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
            made: list[_Contender] = []
            errors: dict[str, str] = {}
            for name, making in self._contenders(case, layer, parts, bare):
                try:
                    made.append(making())
                except Exception as error:  # noqa: BLE001 - one component must not take the others
                    errors[name] = _told(error)
            for _ in range(self.repeats + WARM_UP):
                for contender in list(made):
                    try:
                        contender.repeat()
                    except Exception as error:  # noqa: BLE001 - likewise
                        errors[contender.name] = _told(error)
                        made.remove(contender)
                advance()
            for contender in made:
                yield self._case(case, layer, contender.name) | self._figures(
                    case, layer, contender
                )
            for name, reason in errors.items():
                yield self._case(case, layer, name) | {"error": reason}

    def _contenders(
        self,
        case: AttentionCase,
        layer: LayerSpec,
        parts: Mapping[str, AttentionBackend],
        bare: Sequence[BareAttention | BareSdpa],
    ) -> Iterator[tuple[str, Callable[[], _Contender]]]:
        """Yield the name of each contender, and what makes it."""
        number = self.num_layers or case.num_layers(layer)

        def component(name: str) -> _Contender:
            run = AttentionRun.make(
                case, parts[name], layer, num_shared=self.num_shared, num_layers=number
            )
            return _Contender(name, run, run.captured(), layer.device, number)

        def library(called: BareAttention | BareSdpa) -> _Contender:
            layers = [called.run(case, layer) for _ in range(number)]

            def step() -> None:
                for run in layers:
                    run()

            return _Contender(f"bare {called.name}", step, None, layer.device, number)

        for name in parts:
            yield name, lambda name=name: component(name)  # type: ignore[misc]
        for called in bare:
            yield f"bare {called.name}", lambda called=called: library(called)  # type: ignore[misc]

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
        launched = median(contender.launched[WARM_UP:])
        replayed = median(contender.replayed[WARM_UP:]) if contender.replayed else None
        seconds = launched if replayed is None else replayed
        read = case.read_bytes(layer, self.num_shared) / seconds
        computed = case.operations(layer) / seconds
        rates = self.rates
        return {
            "us_per_layer": round(launched * 1e6, 2),
            "us_per_layer_captured": None if replayed is None else round(replayed * 1e6, 2),
            "bytes_per_s": round(read),
            "operations_per_s": round(computed),
            "share_of_copy": None if rates is None else round(read / rates.copy, 4),
            "share_of_matmul": None if rates is None else round(computed / rates.sums, 4),
            "repeats": self.repeats,
        }


def _told(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:300]}"
