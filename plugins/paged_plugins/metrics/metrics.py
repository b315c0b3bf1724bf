"""Observer ``metrics``: what a monitor reads of an engine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paged_core.engine.contexts import ObserverContext
from paged_core.interfaces.observer import Observer, StepRecord
from paged_core.request import FinishReason
from paged_core.sequence import SequenceGroup
from paged_plugins.instruments import (
    Counter,
    Gauge,
    Histogram,
    Instrument,
    Labels,
    exposition,
    merged_exposition,
)
from paged_plugins.metrics.plugin import MetricsSettings
from paged_plugins.written_files import prepare_file, write_text

_STEP_TOKENS = (1, *(2**power for power in range(3, 15)))
_TTFT = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_PER_TOKEN = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0),
)
_LATENCY = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0),
    *(240.0, 480.0, 960.0, 1920.0, 7680.0),
)
_SAMPLES = (1, 2, 5, 10, 20)
_PREEMPTIONS = (1, 2, 3, 4, 5, 10, 20)


class EngineInstruments:
    """Instruments of queues, cache, steps and requests; iterating yields all of them.

    Those of vLLM that concern what this engine does not have (adapters, speculation, transfer
    between engines, several engines in one) are left out. ``paged_core:`` begins the names of those
    that vLLM does not have.

    Args:
        max_model_len: tokens; histograms of lengths end there.
        cache: what is to be known of the cache, by name.
    """

    def __init__(self, max_model_len: int, cache: Labels) -> None:
        self.num_requests_running = Gauge(
            "vllm:num_requests_running", "Requests that hold blocks and are computed in steps."
        )
        self.num_requests_waiting = Gauge("vllm:num_requests_waiting", "Requests that wait.")
        self.num_requests_waiting_by_reason = Gauge(
            "vllm:num_requests_waiting_by_reason",
            "Requests that wait: for blocks or a place in the batch, or for something else.",
            label="reason",
        )
        self.num_requests_waiting_by_reason.set(0, "deferred")
        self.num_requests_swapped = Gauge(
            "vllm:num_requests_swapped", "Requests whose blocks are in host memory."
        )
        self.kv_cache_usage = Gauge(
            "vllm:kv_cache_usage_perc", "Share of the cache's blocks that are in use, from 0 to 1."
        )
        self.cache_config = Gauge("vllm:cache_config_info", "What the cache is.", fixed=cache)
        self.prefix_cache_queries = Counter(
            "vllm:prefix_cache_queries", "Prompt tokens looked up in the prefix cache."
        )
        self.prefix_cache_hits = Counter(
            "vllm:prefix_cache_hits", "Prompt tokens that the prefix cache served."
        )
        self.num_preemptions = Counter(
            "vllm:num_preemptions", "Preemptions, by recompute or by swap."
        )
        self.evicted_blocks = Counter(
            "paged_core:evicted_blocks", "Cached blocks whose content was given up."
        )
        self.prompt_tokens = Counter("vllm:prompt_tokens", "Prompt tokens, once all are computed.")
        self.prompt_tokens_by_source = Counter(
            "vllm:prompt_tokens_by_source",
            "The same by where their keys and values are from.",
            label="source",
        )
        for source in ("local_compute", "local_cache_hit", "external_kv_transfer"):
            self.prompt_tokens_by_source.add(0, source)
        self.prompt_tokens_cached = Counter(
            "vllm:prompt_tokens_cached", "Those of them that the prefix cache served."
        )
        self.generation_tokens = Counter("vllm:generation_tokens", "Tokens generated.")
        self.iteration_tokens = Histogram(
            "vllm:iteration_tokens_total", "Tokens computed in a step.", _STEP_TOKENS
        )

        lengths = length_bounds(max_model_len)
        self.request_success = Counter(
            "vllm:request_success", "Requests that ended.", label="finished_reason"
        )
        for reason in FinishReason:
            self.request_success.add(0, reason.value)
        self.time_to_first_token = Histogram(
            "vllm:time_to_first_token_seconds", "From arrival to the first token.", _TTFT
        )
        self.inter_token_latency = Histogram(
            "vllm:inter_token_latency_seconds", "Between the tokens of a sequence.", _PER_TOKEN
        )
        self.time_per_output_token = Histogram(
            "vllm:request_time_per_output_token_seconds",
            "Mean time per token after the first, of a request.",
            _PER_TOKEN,
        )
        self.e2e_request_latency = _latency("e2e_request_latency", "From arrival to the end.")
        self.request_queue_time = _latency(
            "request_queue_time", "From arrival to the first admission."
        )
        self.request_inference_time = _latency(
            "request_inference_time", "From first admission to the end."
        )
        self.request_prefill_time = _latency(
            "request_prefill_time", "From first admission to first token."
        )
        self.request_decode_time = _latency(
            "request_decode_time", "From the first token to the end."
        )
        self.request_prompt_tokens = Histogram(
            "vllm:request_prompt_tokens", "Prompt tokens of a request.", lengths
        )
        self.request_generation_tokens = Histogram(
            "vllm:request_generation_tokens", "Tokens generated for a request.", lengths
        )
        self.request_max_num_generation_tokens = Histogram(
            "vllm:request_max_num_generation_tokens",
            "Tokens of the longest sequence of a request.",
            lengths,
        )
        self.request_prefill_kv_computed_tokens = Histogram(
            "vllm:request_prefill_kv_computed_tokens",
            "Prompt tokens of a request that were computed, not found in the cache.",
            lengths,
        )
        self.request_num_preemptions = Histogram(
            "vllm:request_num_preemptions", "Preemptions of a request.", _PREEMPTIONS
        )
        self.request_params_n = Histogram(
            "vllm:request_params_n", "Sequences that a request asks for.", _SAMPLES
        )
        self.request_params_max_tokens = Histogram(
            "vllm:request_params_max_tokens", "Tokens that a request asks for at most.", lengths
        )

    def added(self, group: SequenceGroup) -> None:
        """Count what a new request asks for."""
        sampling = group.request.sampling
        self.request_params_n.observe(sampling.n)
        if sampling.max_tokens is not None:
            self.request_params_max_tokens.observe(sampling.max_tokens)

    def first_token(self, group: SequenceGroup, now: float) -> None:
        """Count a request that has sampled its first token, for which its prompt was computed."""
        num_prompt, num_cached = len(group.request.prompt), group.num_cached or 0
        self.prompt_tokens.add(num_prompt)
        self.prompt_tokens_cached.add(num_cached)
        self.prompt_tokens_by_source.add(num_cached, "local_cache_hit")
        self.prompt_tokens_by_source.add(num_prompt - num_cached, "local_compute")
        self.request_prefill_kv_computed_tokens.observe(num_prompt - num_cached)
        self.time_to_first_token.observe(now - group.arrival)

    def ended(self, group: SequenceGroup, now: float, num_tokens: int) -> None:
        """Count a request that has ended at ``now`` on the engine's clock.

        Args:
            num_tokens: that were generated for it.
        """
        reason = group.sequences[0].finish_reason
        self.request_success.add(1, "" if reason is None else reason.value)
        self.request_prompt_tokens.observe(len(group.request.prompt))
        self.request_generation_tokens.observe(num_tokens)
        longest = max(len(each.output) for each in group.sequences)
        self.request_max_num_generation_tokens.observe(longest)
        self.e2e_request_latency.observe(now - group.arrival)
        admitted, first = group.admitted_at, group.first_token_at
        if admitted is not None:
            self.request_queue_time.observe(admitted - group.arrival)
            self.request_inference_time.observe(now - admitted)
        if first is not None:
            if longest > 1:
                self.time_per_output_token.observe((now - first) / (longest - 1))
            self.request_decode_time.observe(now - first)
            if admitted is not None:
                self.request_prefill_time.observe(first - admitted)

    def __iter__(self) -> Iterator[Instrument]:
        return iter(vars(self).values())


def _latency(name: str, about: str) -> Histogram:
    return Histogram(f"vllm:{name}_seconds", about, _LATENCY)


def length_bounds(most: int) -> Sequence[int]:
    """Return 1, 2, 5, 10, 20, 50 and so on, up to ``most``."""
    bounds: list[int] = []
    decade = 1
    while decade <= most:
        bounds += [decade * first for first in (1, 2, 5) if decade * first <= most]
        decade *= 10
    return bounds


_LONGEST = 10_000_000
"""Where the settings do not say how long a sequence may become."""


@dataclass(slots=True)
class _Progress:
    """The progress of one request."""

    group: SequenceGroup
    num_prompt: int
    num_tokens: int = 0
    """Generated so far, by all of its sequences."""
    last_at: float = 0.0
    """When the newest of them were there."""
    num_preemptions: int = 0

    def count(self) -> int:
        """Return how many tokens there are now."""
        sequences = self.group.sequences
        if len(sequences) == 1:
            return len(sequences[0].tokens) - self.num_prompt
        return sum(len(each.tokens) - self.num_prompt for each in sequences)


class Metrics(Observer):
    """Counts from the start of the engine. Times are on the engine's clock.

    :meth:`snapshot` is for Python, :meth:`text` for Prometheus. Both may be called at any time, in
    the engine's thread.

    Raises:
        SettingsError: the file cannot be written.
    """

    def __init__(self, options: MetricsSettings, context: ObserverContext, /) -> None:
        settings = context.settings
        cache = {
            "block_size": str(settings.block_size),
            "cache_dtype": settings.kv_cache_dtype,
            "enable_prefix_caching": str(settings.block_allocator.name != "uncached"),
            "num_gpu_blocks": str(context.num_blocks),
            "num_cpu_blocks": str(settings.num_host_blocks or 0),
            "kv_cache_size_tokens": str(context.num_blocks * settings.block_size),
        }
        self._counts = EngineInstruments(settings.max_model_len or _LONGEST, cache)
        self.labels = {"model_name": options.model_name or settings.model, "engine": "0"}
        self._num_blocks = context.num_blocks
        self._live: dict[str, _Progress] = {}
        self._path = options.path
        if self._path is not None:
            prepare_file(self._path, "metrics.path")

    def snapshot(self) -> dict[str, Any]:
        """Return every value by its name: numbers; by label, numbers; of histograms, mappings with
        ``count``, ``sum`` and ``buckets``."""
        return {each.name: each.snapshot() for each in self._counts}

    def text(self) -> str:
        """Return every value in Prometheus' text format."""
        return exposition(self._counts, self.labels)

    def report(self, since: int, /) -> str:
        """Return :meth:`text`; a front end that is scraped asks for it."""
        return self.text()

    @staticmethod
    def merge_reports(reports: Mapping[int, str]) -> str:
        """Return one page of those of several engines; the label ``engine`` has their numbers."""
        return merged_exposition(
            text.replace(',engine="0"', f',engine="{number}"') for number, text in reports.items()
        )

    def on_step(self, step: StepRecord, /) -> None:
        counts, queues = self._counts, step.queues
        live = self._live
        self._advance((live[name] for name in step.scheduled if name in live), step.ended)
        if step.scheduled:
            counts.iteration_tokens.observe(sum(step.scheduled.values()))
        counts.evicted_blocks.add(len(step.evicted))
        counts.num_requests_running.set(len(queues.running))
        counts.num_requests_waiting.set(len(queues.waiting))
        counts.num_requests_waiting_by_reason.set(len(queues.waiting), "capacity")
        counts.num_requests_swapped.set(len(queues.swapped))
        counts.kv_cache_usage.set(1 - step.free_blocks / self._num_blocks)

    def on_request(self, group: SequenceGroup, event: str, /) -> None:
        counts = self._counts
        if event == "added":
            self._live[group.id] = _Progress(group, len(group.request.prompt))
            counts.added(group)
        elif event == "admitted" and not group.num_preemptions:
            counts.prefix_cache_queries.add(len(group.request.prompt))
            counts.prefix_cache_hits.add(group.num_cached or 0)
        elif event in {"preempted", "swapped_out"}:
            counts.num_preemptions.add(1)
            if group.id in self._live:
                self._live[group.id].num_preemptions += 1
        elif event == "finished" and group.id in self._live:
            self._finish(self._live.pop(group.id))

    def close(self) -> None:
        if self._path is not None:
            write_text(self._path, self.text())

    def _advance(self, advanced: Iterable[_Progress], now: float) -> None:
        """Count the tokens that requests have gained, which were there at ``now``."""
        counts, total = self._counts, 0
        gained_since: dict[float, int] = {}
        for progress in advanced:
            num_tokens = progress.count()
            gained = num_tokens - progress.num_tokens
            if gained <= 0:
                continue
            if progress.num_tokens:
                last_at = progress.last_at
                gained_since[last_at] = gained_since.get(last_at, 0) + gained
            else:
                counts.first_token(progress.group, now)
            total += gained
            progress.num_tokens, progress.last_at = num_tokens, now
        for last_at, gained in gained_since.items():
            counts.inter_token_latency.observe(now - last_at, gained)
        counts.generation_tokens.add(total)

    def _finish(self, progress: _Progress) -> None:
        """Count a request that has ended, whatever it has got to."""
        ended = progress.group.finished_at
        assert ended is not None
        self._advance([progress], ended)
        self._counts.ended(progress.group, ended, progress.num_tokens)
        self._counts.request_num_preemptions.observe(progress.num_preemptions)
