"""Counters, gauges and histograms of an engine, and the text in which Prometheus reads them.

Names are those of vLLM 0.32 (V1). Source of the format: "Text-based format", version 0.0.4, of the
Prometheus documentation.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate

from paged_core.sequence import SequenceGroup

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""Of what :func:`exposition` returns, for servers."""

Labels = Mapping[str, str]
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


class Counter:
    """A number that only grows; with ``label``, one for each value of that label."""

    kind = "counter"

    def __init__(self, name: str, about: str, label: str | None = None) -> None:
        self.name, self.about, self.label = name, about, label
        self._values: dict[str, float] = {} if label else {"": 0}

    def add(self, amount: float, value: str = "") -> None:
        """Add an amount, which is not negative.

        Args:
            value: of the label, if it has one.
        """
        self._values[value] = self._values.get(value, 0) + amount

    def snapshot(self) -> float | dict[str, float]:
        """Return the number, or the numbers by value of the label."""
        return dict(self._values) if self.label else self._values[""]

    def samples(self, labels: Labels) -> Iterator[str]:
        """Yield the lines of its values."""
        for value, number in self._values.items():
            own = {self.label: value} if self.label else {}
            yield _sample(f"{self.name}_total", {**labels, **own}, number)


class Gauge:
    """A number that may go up and down."""

    kind = "gauge"

    def __init__(self, name: str, about: str) -> None:
        self.name, self.about = name, about
        self._value: float = 0

    def set(self, value: float) -> None:
        """Replace the number."""
        self._value = value

    def snapshot(self) -> float:
        """Return the number."""
        return self._value

    def samples(self, labels: Labels) -> Iterator[str]:
        """Yield the line of its value."""
        yield _sample(self.name, labels, self._value)


class Histogram:
    """How many observations were at most so large, for each of several bounds.

    Args:
        bounds: the upper ends of the buckets, each included, in ascending order; a last bucket,
            without end, is added.
    """

    kind = "histogram"

    def __init__(self, name: str, about: str, bounds: Sequence[float]) -> None:
        self.name, self.about, self.bounds = name, about, tuple(bounds)
        self._counts = [0] * (len(self.bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        """Add ``count`` observations of the same value."""
        self._counts[bisect_left(self.bounds, value)] += count
        self._sum += value * count

    def snapshot(self) -> dict[str, float | dict[float, int]]:
        """Return ``count``, ``sum`` and ``buckets``: by bound, how many were at most so large."""
        totals = list(accumulate(self._counts))
        buckets = dict(zip(self.bounds, totals, strict=False))
        return {"count": totals[-1], "sum": self._sum, "buckets": buckets}

    def samples(self, labels: Labels) -> Iterator[str]:
        """Yield the lines of its buckets, its sum and its count."""
        ends = [*map(_number, self.bounds), "+Inf"]
        totals = list(accumulate(self._counts))
        for end, total in zip(ends, totals, strict=True):
            yield _sample(f"{self.name}_bucket", {**labels, "le": end}, total)
        yield _sample(f"{self.name}_sum", labels, self._sum)
        yield _sample(f"{self.name}_count", labels, totals[-1])


Instrument = Counter | Gauge | Histogram


def exposition(instruments: Iterable[Instrument], labels: Labels) -> str:
    """Return the values of instruments as text that Prometheus reads.

    Args:
        labels: of every value.
    """
    lines: list[str] = []
    for each in instruments:
        name = f"{each.name}_total" if isinstance(each, Counter) else each.name
        lines.append(f"# HELP {name} {_escaped(each.about, quotes=False)}")
        lines.append(f"# TYPE {name} {each.kind}")
        lines += each.samples(labels)
    return "\n".join(lines) + "\n"


def _sample(name: str, labels: Labels, value: float) -> str:
    pairs = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
    return f"{name}{{{pairs}}} {_number(value)}"


def _number(value: float) -> str:
    return str(float(value)).replace("inf", "+Inf").replace("nan", "NaN")


def _escaped(text: str, *, quotes: bool = True) -> str:
    text = text.replace("\\", r"\\").replace("\n", r"\n")
    return text.replace('"', r"\"") if quotes else text


class EngineInstruments:
    """Instruments of queues, cache, steps and requests; iterating yields all of them.

    Those of vLLM that concern what this engine does not have (adapters, speculation, transfer
    between engines, several engines in one) are left out. ``paged_core:`` begins the names of those
    that vLLM does not have.

    Args:
        max_model_len: tokens; histograms of lengths end there.
    """

    def __init__(self, max_model_len: int) -> None:
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
