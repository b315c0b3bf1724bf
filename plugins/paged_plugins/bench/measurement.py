"""Workloads served by an engine, and measured."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, Self

import psutil

from paged_core.errors import EngineError, RequestError, SettingsError
from paged_core.ids import BlockId
from paged_core.interfaces.executor import SupportsClock
from paged_core.interfaces.layer import ModelSize
from paged_core.interfaces.runner import SupportsModelSize
from paged_core.llm import LLM
from paged_core.plugins.component import ComponentSettings
from paged_core.request import FinishReason
from paged_core.sampling_params import SamplingParams
from paged_core.sequence import SequenceGroup
from paged_core.step import StepInput
from paged_core.text.generation import Generation
from paged_plugins.bench.device import least_seconds, measure_rates
from paged_plugins.bench.workloads import Workload
from paged_plugins.lab.measures import ServiceLevel, measures
from paged_plugins.lab.runs.run_record import RequestRecord, RunRecord, RunTotals, ended_record
from paged_plugins.workloads.batch import by_turn, is_batch, longest
from paged_plugins.workloads.request import WorkloadRequest, token_ids
from paged_plugins.workloads.serving import Arrival, Arrivals, Refusal, ServingLoop

_ANY_VOCABULARY = 10_000
_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")
_WRITTEN_BLOCKS = 256
"""Blocks of the cache written in one step."""
_PHASES = ("schedule", "prepare", "model", "sample", "apply")


def peak_memory() -> int:
    """Return the peak resident size in bytes since the start or the last :func:`reset_peak`.

    On Linux the peaks of child processes are added: an executor may have the model in one.
    """
    if _STATUS.is_file():
        children = psutil.Process().children(recursive=True)
        return _peak_of(_STATUS) + sum(
            _peak_of(Path(f"/proc/{each.pid}/status")) for each in children
        )
    import resource

    unit = 1 if sys.platform == "darwin" else 1 << 10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _peak_of(status: Path) -> int:
    """Return the peak of a process in bytes; 0 if it has ended."""
    with suppress(OSError):
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) << 10
    return 0


def reset_peak() -> None:
    """Reset the peak; where the system does not support that, it stays the peak since the start."""
    try:
        _CLEAR.write_text("5")
    except OSError:
        return


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One repeat of a workload."""

    record: RunRecord
    """Record of its requests; ``elapsed`` is from the first one submitted to the last token, and
    detokenisation comes after."""
    seconds: dict[str, float]
    """By phase, and ``detokenise``; the rest of ``elapsed`` is ``other``."""
    outputs: list[list[int]]

    @property
    def elapsed(self) -> float:
        """Seconds from the first request submitted to the last token."""
        return self.record.totals.elapsed


@dataclass(slots=True)
class Bench:
    """One engine under measurement; closing it, or leaving its ``with``, closes the engine."""

    llm: LLM
    load_peak: int = field(default_factory=peak_memory)
    """Peak memory in bytes while the engine started."""
    temperature: float = 0.0
    """Temperature of requests of one sequence; 0: greedy."""
    cache_written: bool = False
    """True once :meth:`write_cache` has run; on a GPU, allocating the cache writes it."""

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
        """Return whether the workload's longest request is within ``max_model_len``."""
        return longest(workload.requests()) <= self.llm.engine.capacity.max_model_len

    def check_lengths(self, workloads: Sequence[Workload]) -> None:
        """Check that every request fits before any is run.

        Raises:
            SettingsError: the longest request of a workload does not fit.
        """
        for workload in workloads:
            if not self.fits(workload):
                raise SettingsError(
                    f"workload {workload.name} has a request of {longest(workload.requests())} "
                    f"tokens, and the engine serves {self.llm.engine.capacity.max_model_len}; use "
                    "a model with more positions, raise max_model_len or num_blocks, or draw a "
                    "shorter workload with --num-requests"
                )

    def warm_up(self) -> None:
        """Run two short requests, so that one-time work is not measured."""
        prompt = (tuple(place % self.vocab_size for place in range(24)),)
        self.run([WorkloadRequest(id=str(place), prompt=prompt, output=4) for place in range(2)])

    def write_cache(self) -> None:
        """Write the whole cache once, so that no step waits for its memory; before any request.

        A system provides memory when it is first written to, and that can take longer than what is
        to be measured. All of the cache is resident afterwards.
        """
        executor, num_blocks = self.llm.engine.executor, self.llm.engine.capacity.num_blocks
        for begin in range(0, num_blocks, _WRITTEN_BLOCKS):
            end = min(begin + _WRITTEN_BLOCKS, num_blocks)
            targets = [BlockId(block) for block in range(begin, end)]
            copies = StepInput(
                number=0, copy_sources=[BlockId(0)] * len(targets), copy_targets=targets
            )
            executor.collect(executor.submit(copies))
        self.cache_written = True

    def run(
        self, firsts: Sequence[WorkloadRequest], advance: Callable[[], None] = lambda: None
    ) -> Run:
        """Complete requests at :attr:`temperature`, each from its arrival on; no token ends one.

        Args:
            firsts: those that follow no other, with token ids in their prompts.
            advance: called once for each finished request.

        Raises:
            RequestError: a request does not fit the engine.
            EngineError: a request failed.
        """
        llm = self.llm
        before = dict(llm.engine.seconds)
        num_steps = llm.engine.num_steps
        started = perf_counter()
        found = complete(llm, firsts, advance, self.temperature)
        elapsed = perf_counter() - started
        completed = [found[request.id] for request, _ in by_turn(firsts)]
        outputs = [each.generation.output() for each in completed]
        detokenise = perf_counter() - started - elapsed
        seconds = {
            phase: llm.engine.seconds.get(phase, 0.0) - before.get(phase, 0.0) for phase in _PHASES
        }
        seconds["other"] = max(0.0, elapsed - sum(seconds.values()))
        seconds["detokenise"] = detokenise
        records = [each.record for each in completed]
        totals = RunTotals(
            num_steps=llm.engine.num_steps - num_steps,
            elapsed=elapsed,
            num_preemptions=sum(each.num_preemptions for each in records),
        )
        return Run(
            record=RunRecord(requests=records, totals=totals),
            seconds=seconds,
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
        each = [workload.requests(turn, vocab_size=self.vocab_size) for turn in range(repeats)]
        runs = [self.run(each[0], advance)]
        peak = max(self.load_peak, peak_memory())  # later repeats only add cached prefixes
        runs += [self.run(firsts, advance) for firsts in each[1:]]
        return {
            **self._of_runs(workload, each[0], runs),
            "peak_memory_bytes": peak,
            "roofline": self._roofline(each[0], runs) if roofline else None,
        }

    def _of_runs(
        self, workload: Workload, firsts: Sequence[WorkloadRequest], runs: list[Run]
    ) -> dict[str, Any]:
        requests = [each for first in firsts for each in first.whole_prompts()]
        num_output = sum(request.n * request.output for request, _ in requests)
        num_input = sum(length for _, length in requests)
        elapsed = median(run.elapsed for run in runs)
        phases = {
            phase: round(median(run.seconds[phase] for run in runs), 6) for phase in runs[0].seconds
        }
        together = RunRecord(requests=[each for run in runs for each in run.record.requests])
        found = measures(together, ServiceLevel())
        digest = hashlib.sha1(json.dumps(runs[0].outputs).encode(), usedforsecurity=False)
        return {
            "workload": workload.name,
            "model": self.llm.settings.model,
            "dtype": self.dtype,
            "device": self.device,
            "requests": len(requests),
            "input_tokens": num_input,
            "output_tokens": num_output,
            "repeats": len(runs),
            "elapsed_s": round(elapsed, 4),
            "elapsed_s_min_max": [round(f(run.elapsed for run in runs), 4) for f in (min, max)],
            "output_tokens_per_s": round(num_output / elapsed, 1),
            "total_tokens_per_s": round((num_input + num_output) / elapsed, 1),
            "ttft_ms": _percentiles(found, "ttft"),
            "tpot_ms": _percentiles(found, "tpot"),
            "steps": round(median(run.record.totals.num_steps for run in runs)),
            "cached_tokens": round(
                median(sum(each.num_cached for each in run.record.requests) for run in runs)
            ),
            "preemptions": round(median(run.record.totals.num_preemptions for run in runs)),
            "components": self.components(),
            "temperature": self.temperature,
            "quantized_products": size.quantized_products if (size := self.size()) else None,
            "graphs": size.graphs if size else None,
            "cache_written": self.cache_written or (self.device or "cpu") != "cpu",
            "seconds": phases,
            "digest": digest.hexdigest()[:10],
        }

    def _roofline(
        self, firsts: Sequence[WorkloadRequest], runs: list[Run]
    ) -> dict[str, Any] | None:
        size = self.size()
        if size is None or not is_batch(firsts):
            return None
        rates = measure_rates(size.layers[0].dtype, size.layers[0].device)
        least = least_seconds(firsts, size, rates, _num_shared(firsts))
        num_output = sum(each.output for first in firsts for each in first.family())
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


@dataclass(frozen=True, slots=True)
class Completed:
    """A finished request."""

    generation: Generation
    record: RequestRecord


def complete(
    llm: LLM, firsts: Sequence[WorkloadRequest], advance: Callable[[], None], temperature: float
) -> dict[str, Completed]:
    """Return requests completed, by id.

    Args:
        firsts: those that follow no other, with token ids in their prompts.
        advance: called once for each request that ends.

    Raises:
        RequestError: a request does not fit the engine.
        EngineError: a request failed, or ended early.
    """
    loop = _Completion(llm, firsts, advance, temperature)
    try:
        loop.run()
    finally:
        for request_id in loop.in_flight:
            llm.driver.abort(request_id)
    return loop.done


class _Completion(ServingLoop):
    """Completes requests, joined with their text; the first that cannot ends all."""

    def __init__(
        self,
        llm: LLM,
        firsts: Sequence[WorkloadRequest],
        advance: Callable[[], None],
        temperature: float,
    ) -> None:
        by_time = sorted(firsts, key=lambda first: first.at)
        super().__init__(llm.driver, Arrivals(by_time))
        self.done: dict[str, Completed] = {}
        self._tokenizer = llm.tokenizer
        self._advance = advance
        self._temperature = temperature
        self._generations: dict[str, Generation] = {}

    def add(self, arrival: Arrival) -> None:
        request = arrival.asked(self.start, sampling=_sampling(arrival.request, self._temperature))
        generation = Generation(request, None, self._tokenizer)
        generation.group = self.driver.add(request)
        self._generations[request.id] = generation

    def refused(self, arrival: Arrival, now: float, refusal: Refusal) -> None:
        if refusal.is_error:
            raise _failed(arrival.request.id, refusal.reason)
        raise RequestError(refusal.reason)

    def ended(self, group: SequenceGroup, arrival: Arrival) -> None:
        for sequence in group.sequences:
            length = len(sequence.output)
            if sequence.finish_reason is FinishReason.ERROR:
                raise _failed(group.id, sequence.error)
            if length != arrival.request.output:
                raise EngineError(
                    f"request {group.id} ended after {length} of {arrival.request.output} tokens "
                    f"({sequence.error or sequence.finish_reason}); raise max_model_len or "
                    "num_blocks"
                )
        record = ended_record(group, arrival, self.start)
        self.done[group.id] = Completed(self._generations.pop(group.id), record)
        self._advance()


def _failed(request_id: str, cause: str | None) -> EngineError:
    return EngineError(f"request {request_id} ended with an error: {cause}")


def _sampling(request: WorkloadRequest, temperature: float) -> SamplingParams:
    """Several sequences of a request are sampled whatever the temperature, or they would be
    equal."""
    return SamplingParams(
        n=request.n,
        temperature=temperature if request.n == 1 else temperature or 1.0,
        max_tokens=request.output,
        ignore_eos=True,
    )


def _num_shared(firsts: Sequence[WorkloadRequest]) -> int:
    """Return the length of the common prefix of the prompts of all first turns."""
    if len(firsts) < 2:
        return 0
    count = 0
    for tokens in zip(*(token_ids(first.prompt, None) for first in firsts), strict=False):
        if len(set(tokens)) > 1:
            break
        count += 1
    return count


def _percentiles(found: Mapping[str, float], kind: str) -> dict[str, float | None]:
    """Return p50, p90 and p99 of a latency in milliseconds; ``None``: no request has it."""
    values = {share: found.get(f"{kind}_ms_{share}") for share in ("p50", "p90", "p99")}
    return {share: value and round(value, 2) for share, value in values.items()}
