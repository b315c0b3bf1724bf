"""The metrics of one engine, under the names and with the buckets of vLLM 0.32 (V1)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from paged_plugins.metrics.instruments import Counter, Gauge, Histogram, Instrument

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
_STEP_TOKENS = (1, *(2**power for power in range(3, 15)))
_SAMPLES = (1, 2, 5, 10, 20)


class InstrumentSet:
    """One instrument for each metric; iterating yields all of them.

    Those of vLLM that concern what this engine does not have (adapters, speculation, transfer
    between engines, several engines in one) are left out. ``paged_core:`` begins the names of those
    that vLLM does not have.

    Args:
        max_model_len: tokens; histograms of lengths end there.
    """

    def __init__(self, max_model_len: int) -> None:
        lengths = length_bounds(max_model_len)
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
        self.request_success = Counter(
            "vllm:request_success", "Requests that ended.", label="finished_reason"
        )
        self.iteration_tokens = Histogram(
            "vllm:iteration_tokens_total", "Tokens computed in a step.", _STEP_TOKENS
        )
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
        self.e2e_request_latency = Histogram(
            "vllm:e2e_request_latency_seconds", "From arrival to the end.", _LATENCY
        )
        self.request_queue_time = Histogram(
            "vllm:request_queue_time_seconds", "From arrival to the first admission.", _LATENCY
        )
        self.request_inference_time = Histogram(
            "vllm:request_inference_time_seconds", "From first admission to the end.", _LATENCY
        )
        self.request_prefill_time = Histogram(
            "vllm:request_prefill_time_seconds", "From first admission to first token.", _LATENCY
        )
        self.request_decode_time = Histogram(
            "vllm:request_decode_time_seconds", "From the first token to the end.", _LATENCY
        )
        self.request_prompt_tokens = Histogram(
            "vllm:request_prompt_tokens", "Prompt tokens of a request.", lengths
        )
        self.request_generation_tokens = Histogram(
            "vllm:request_generation_tokens", "Tokens generated for a request.", lengths
        )
        self.request_params_n = Histogram(
            "vllm:request_params_n", "Sequences that a request asks for.", _SAMPLES
        )
        self.request_params_max_tokens = Histogram(
            "vllm:request_params_max_tokens", "Tokens that a request asks for at most.", lengths
        )

    def __iter__(self) -> Iterator[Instrument]:
        return iter(vars(self).values())


def length_bounds(most: int) -> Sequence[int]:
    """Return 1, 2, 5, 10, 20, 50 and so on, up to ``most``."""
    bounds: list[int] = []
    decade = 1
    while decade <= most:
        bounds += [decade * first for first in (1, 2, 5) if decade * first <= most]
        decade *= 10
    return bounds
