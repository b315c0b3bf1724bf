"""What an engine does, under the names of vLLM 0.32 (V1)."""

from __future__ import annotations

from collections.abc import Iterator

from paged_plugins.metrics.instruments import Counter, Gauge, Histogram, Instrument

_STEP_TOKENS = (1, *(2**power for power in range(3, 15)))


class EngineInstruments:
    """Instruments of queues, cache and steps; iterating yields all of them.

    Those of vLLM that concern what this engine does not have (adapters, speculation, transfer
    between engines, several engines in one) are left out. ``paged_core:`` begins the names of those
    that vLLM does not have.
    """

    def __init__(self) -> None:
        self.num_requests_running = Gauge(
            "vllm:num_requests_running", "Requests that hold blocks and are computed in steps."
        )
        self.num_requests_waiting = Gauge("vllm:num_requests_waiting", "Requests that wait.")
        self.num_requests_swapped = Gauge(
            "vllm:num_requests_swapped", "Requests whose blocks are in host memory."
        )
        self.kv_cache_usage = Gauge(
            "vllm:kv_cache_usage_perc", "Share of the cache's blocks that are in use, from 0 to 1."
        )
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
        self.generation_tokens = Counter("vllm:generation_tokens", "Tokens generated.")
        self.iteration_tokens = Histogram(
            "vllm:iteration_tokens_total", "Tokens computed in a step.", _STEP_TOKENS
        )

    def __iter__(self) -> Iterator[Instrument]:
        return iter(vars(self).values())
