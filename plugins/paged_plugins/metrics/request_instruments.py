"""What requests asked and got, under the names and with the buckets of vLLM 0.32 (V1)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from paged_core.sequence import SequenceGroup
from paged_plugins.metrics.instruments import Counter, Histogram, Instrument

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


class RequestInstruments:
    """Instruments of requests; iterating yields all of them.

    Args:
        max_model_len: tokens; histograms of lengths end there.
    """

    def __init__(self, max_model_len: int) -> None:
        lengths = length_bounds(max_model_len)
        self.request_success = Counter(
            "vllm:request_success", "Requests that ended.", label="finished_reason"
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

    def ended(self, group: SequenceGroup, now: float, num_tokens: int) -> None:
        """Count a request that has ended at ``now`` on the engine's clock.

        Args:
            num_tokens: that were generated for it.
        """
        reason = group.sequences[0].finish_reason
        self.request_success.add(1, "" if reason is None else reason.value)
        self.request_prompt_tokens.observe(len(group.request.prompt))
        self.request_generation_tokens.observe(num_tokens)
        self.e2e_request_latency.observe(now - group.arrival)
        admitted, first = group.admitted_at, group.first_token_at
        if admitted is not None:
            self.request_queue_time.observe(admitted - group.arrival)
            self.request_inference_time.observe(now - admitted)
        if first is not None:
            longest = max(len(each.output) for each in group.sequences)
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
