"""Runs workloads on an engine and measures them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median, quantiles
from time import perf_counter
from typing import Any, Self

from paged_core.component import ComponentSettings
from paged_core.errors import SettingsError
from paged_core.interfaces.executor import SupportsClock
from paged_core.interfaces.model_size import ModelSize
from paged_core.interfaces.runner import SupportsModelSize
from paged_core.llm import LLM
from paged_plugins.bench.completion import Completed, complete
from paged_plugins.bench.memory_peak import peak_memory, reset_peak
from paged_plugins.bench.rates import measure_rates
from paged_plugins.bench.roofline import least_seconds
from paged_plugins.bench.turns import is_batch, longest, prompt_lengths
from paged_plugins.bench.workloads import Item, Workload
from paged_plugins.bench.written_cache import write_cache

_ANY_VOCABULARY = 10_000
_PHASES = ("schedule", "prepare", "model", "sample", "apply")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One repeat of a workload."""

    elapsed: float
    """Seconds from the first request submitted to the last token; detokenisation comes after."""
    seconds: dict[str, float]
    """By phase, and ``detokenise``; the rest of ``elapsed`` is ``other``."""
    num_steps: int
    num_cached: int
    """Prompt tokens found in the prefix cache when their requests were first admitted."""
    num_preemptions: int
    first_token: list[float]
    """Time to first token in seconds, per request."""
    per_token: list[float]
    """Mean time per further token in seconds, per request that generates several."""
    outputs: list[list[int]]


@dataclass(slots=True)
class Bench:
    """One engine under measurement; closing it, or leaving its ``with``, closes the engine."""

    llm: LLM
    load_peak: int = field(default_factory=peak_memory)
    """Peak memory in bytes while the engine started."""
    cache_written: bool = False
    """Whether :meth:`write_cache` has run; on a GPU, allocating the cache writes it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.llm.close()

    @property
    def dtype(self) -> str | None:
        """The model's dtype; ``None``: there is no model."""
        size = self.size()
        return size.layers[0].dtype if size else None

    @property
    def device(self) -> str | None:
        """The device of the model; ``None``: there is no model."""
        size = self.size()
        return size.layers[0].device if size else None

    @property
    def vocab_size(self) -> int:
        """Size of the vocabulary."""
        return self.llm.engine.capacity.vocab_size or _ANY_VOCABULARY

    def fits(self, workload: Workload) -> bool:
        """Whether the workload's longest request is within ``max_model_len``."""
        return longest(workload.items()) <= self.llm.engine.capacity.max_model_len

    def check_lengths(self, workloads: Sequence[Workload]) -> None:
        """Check that every request fits before any is run.

        Raises:
            SettingsError: the longest request of a workload does not fit.
        """
        for workload in workloads:
            if not self.fits(workload):
                raise SettingsError(
                    f"workload {workload.name} has a request of {longest(workload.items())} "
                    f"tokens, and the engine serves {self.llm.engine.capacity.max_model_len}; use "
                    "a model with more positions, raise max_model_len or num_blocks, or draw a "
                    "shorter workload with --num-requests"
                )

    def warm_up(self) -> None:
        """Run two short requests, so that one-time work is not measured."""
        self.run([Item([place % self.vocab_size for place in range(24)], 4)] * 2)

    def write_cache(self) -> None:
        """Write the whole cache once, so that no step waits for its memory; before any request."""
        write_cache(self.llm)
        self.cache_written = True

    def run(self, items: Sequence[Item], advance: Callable[[], None] = lambda: None) -> Run:
        """Complete ``items``: greedy, ignoring end-of-sequence tokens, each from its arrival on.

        Args:
            advance: called once for each finished request.

        Raises:
            RequestError: an item does not fit the engine.
            EngineError: a request failed.
        """
        llm = self.llm
        before = dict(llm.engine.seconds)
        num_steps = llm.engine.num_steps
        started = perf_counter()
        completed = complete(llm, items, advance)
        elapsed = perf_counter() - started
        outputs = [each.generation.output() for each in completed]
        detokenise = perf_counter() - started - elapsed
        seconds = {
            phase: llm.engine.seconds.get(phase, 0.0) - before.get(phase, 0.0) for phase in _PHASES
        }
        seconds["other"] = max(0.0, elapsed - sum(seconds.values()))
        seconds["detokenise"] = detokenise
        first, each = _latencies(completed, items)
        return Run(
            elapsed=elapsed,
            seconds=seconds,
            num_steps=llm.engine.num_steps - num_steps,
            num_cached=sum(output.num_cached_tokens or 0 for output in outputs),
            num_preemptions=sum(one.generation.group.num_preemptions for one in completed),
            first_token=first,
            per_token=each,
            outputs=[output.outputs[0].token_ids for output in outputs],
        )

    def measure(
        self,
        workload: Workload,
        *,
        repeats: int,
        roofline: bool = True,
        advance: Callable[[], None] = lambda: None,
    ) -> dict[str, Any]:
        """Return the result row of a workload: medians over the repeats."""
        reset_peak()
        items = [workload.items(turn, vocab_size=self.vocab_size) for turn in range(repeats)]
        runs = [self.run(items[0], advance)]
        peak = max(self.load_peak, peak_memory())  # later repeats only add cached prefixes
        runs += [self.run(some, advance) for some in items[1:]]
        return {
            **self._of_runs(workload, items[0], runs),
            "peak_memory_bytes": peak,
            "roofline": self._roofline(items[0], runs) if roofline else None,
        }

    def _of_runs(
        self, workload: Workload, items: Sequence[Item], runs: list[Run]
    ) -> dict[str, Any]:
        num_output = sum(item.n * item.num_output for item in items)
        num_input = sum(prompt_lengths(items))
        elapsed = median(run.elapsed for run in runs)
        phases = {
            phase: round(median(run.seconds[phase] for run in runs), 6) for phase in runs[0].seconds
        }
        digest = hashlib.sha1(json.dumps(runs[0].outputs).encode(), usedforsecurity=False)
        return {
            "workload": workload.name,
            "model": self.llm.settings.model,
            "dtype": self.dtype,
            "device": self.device,
            "requests": len(items),
            "input_tokens": num_input,
            "output_tokens": num_output,
            "repeats": len(runs),
            "elapsed_s": round(elapsed, 4),
            "elapsed_s_min_max": [round(f(run.elapsed for run in runs), 4) for f in (min, max)],
            "output_tokens_per_s": round(num_output / elapsed, 1),
            "total_tokens_per_s": round((num_input + num_output) / elapsed, 1),
            "ttft_ms": percentiles([value for run in runs for value in run.first_token]),
            "tpot_ms": percentiles([value for run in runs for value in run.per_token]),
            "steps": round(median(run.num_steps for run in runs)),
            "cached_tokens": round(median(run.num_cached for run in runs)),
            "preemptions": round(median(run.num_preemptions for run in runs)),
            "components": self.components(),
            "quantized_products": size.quantized_products if (size := self.size()) else None,
            "cache_written": self.cache_written or (self.device or "cpu") != "cpu",
            "seconds": phases,
            "digest": digest.hexdigest()[:10],
        }

    def _roofline(self, items: Sequence[Item], runs: list[Run]) -> dict[str, Any] | None:
        size = self.size()
        if size is None or not is_batch(items):
            return None
        rates = measure_rates(size.layers[0].dtype, size.layers[0].device)
        least = least_seconds(items, size, rates, _num_shared(items))
        num_output = sum(item.num_output for item in items)
        return {
            "ceiling_tokens_per_s": round(num_output / least, 1),
            "share": round(least / median(run.elapsed for run in runs), 3),
            "read_bytes_per_s": round(rates.read),
            "operations_per_s": round(rates.sums),
        }

    def components(self) -> dict[str, str]:
        """Return the name of the component of each slot that has one; a cost model has no part in
        steps that take real time.
        """
        is_simulated = isinstance(self.llm.engine.executor, SupportsClock)
        return {
            key: value.name
            for key, value in self.llm.settings
            if isinstance(value, ComponentSettings) and (is_simulated or key != "cost_model")
        }

    def size(self) -> ModelSize | None:
        """Return the size of the model; ``None``: there is none."""
        executor = self.llm.engine.executor
        return executor.model_size() if isinstance(executor, SupportsModelSize) else None


def _latencies(
    completed: Sequence[Completed], items: Sequence[Item]
) -> tuple[list[float], list[float]]:
    """Return the times to first token and the times per further token, in seconds."""
    first, each = [], []
    for one, item in zip(completed, items, strict=True):
        times = one.generation.output().metrics
        assert times.first_token is not None
        assert times.finished is not None
        first.append(times.first_token - one.arrival)
        if item.num_output > 1:
            each.append((times.finished - times.first_token) / (item.num_output - 1))
    return first, each


def _num_shared(items: Sequence[Item]) -> int:
    """Return the length of the common prefix of the prompts of all first turns."""
    prompts = [item.prompt for item in items if item.follows is None]
    if len(prompts) < 2:
        return 0
    count = 0
    for tokens in zip(*prompts, strict=False):
        if len(set(tokens)) > 1:
            break
        count += 1
    return count


def percentiles(values: list[float]) -> dict[str, float | None]:
    """Return p50, p90 and p99 in milliseconds; ``None`` if ``values`` is empty."""
    if not values:
        return dict.fromkeys(("p50", "p90", "p99"))
    if len(values) < 2:
        values = values * 2
    cuts = quantiles(values, n=100, method="inclusive")
    return {f"p{share}": round(1000 * cuts[share - 1], 2) for share in (50, 90, 99)}
