"""``paged-core bench decode``: decode steps against the time that their bytes need."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from heapq import nlargest
from math import inf
from operator import itemgetter
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Annotated, Any

import typer

from paged_core.cli.options import AsJson, SettingsArgs
from paged_core.cli.output import print_table
from paged_core.errors import SettingsError
from paged_core.interfaces.layer import ModelSize
from paged_core.llm import LLM
from paged_core.sampling_params import SamplingParams
from paged_core.text.generation import Generation
from paged_plugins.bench.device import Rates, machine, machine_line, measure_rates
from paged_plugins.bench.throughput_command import open_bench
from paged_plugins.bench.workloads import Workload
from paged_plugins.command_options import JsonFile, Repeats, report
from paged_plugins.workloads.batch import drawn
from paged_plugins.workloads.request import token_ids

_WARM_UP = 8
"""Steps after the prefill that are not measured: graphs are captured, sizes are tuned."""
_PROFILED = 8
_CHUNK = 512
"""Prompt tokens that a step prefills at least, if there are as many."""
_CATEGORIES = {"kernel", "gpu_memcpy", "gpu_memset"}


def decode_command(
    given: SettingsArgs,
    batch_size: Annotated[int, typer.Option(min=1, help="Sequences that decode.")] = 256,
    context: Annotated[int, typer.Option(min=1, help="Tokens of each prompt.")] = 1024,
    steps: Annotated[int, typer.Option(min=1, help="Steps per repeat.")] = 32,
    repeats: Repeats = 3,
    temperature: Annotated[float, typer.Option(min=0, help="0: greedy.")] = 0.0,
    roofline: Annotated[
        bool, typer.Option(help="Measure the bandwidth of the device afterwards.")
    ] = True,
    as_json: AsJson = False,
    output: JsonFile = None,
) -> None:
    """Measure the steps of a batch in which every sequence decodes.

    Compares with the time that reading the weights and the cached keys and values once takes at
    the bandwidth of the device, measured afterwards. On CUDA, some further steps run under torch's
    profiler: the share of the time in which the GPU is idle, and the kernels that take most of it.
    """
    chosen = DecodeSteps(
        batch_size=batch_size,
        context=context,
        steps=steps,
        repeats=repeats,
        temperature=temperature,
    )
    with open_bench(given, [chosen.workload]) as bench:
        size = bench.size()
        if size is None:
            raise SettingsError("this executor runs no model; --executor local does")
        found: dict[str, Any] = {
            "machine": machine(size.layers[0].device),
            "model": bench.llm.settings.model,
            "dtype": bench.dtype,
            "components": bench.components(),
            "graphs": size.graphs,
        } | chosen.measure(bench.llm, size)
    if roofline:
        rates = measure_rates(size.layers[0].dtype, size.layers[0].device)
        found |= _compared(found, rates)
    report(found, output, as_json, _print)


def _compared(found: dict[str, Any], rates: Rates) -> dict[str, Any]:
    """Return the least time of a step, at the faster of reading and copying."""
    bandwidth = max(rates.read, rates.copy)
    least = 1000 * (found["weight_bytes"] + found["cache_bytes"]) / bandwidth
    return {
        "read_bytes_per_s": round(rates.read),
        "copy_bytes_per_s": round(rates.copy),
        "least_ms": round(least, 4),
        "ratio": round(found["ms_per_step"] / least, 3),
    }


def _print(found: dict[str, Any]) -> None:
    title = (
        f"{found['model']} in {found['dtype']}: {found['batch_size']} sequences of "
        f"{found['context']} tokens, median of {found['repeats']}\n{machine_line(found['machine'])}"
    )
    shares = (found["gpu_idle_share"], found["gpu_idle_share_unprofiled"])
    idle = ", ".join("-" if share is None else f"{100 * share:.1f}%" for share in shares)
    rows: list[tuple[str, object]] = [
        ("milliseconds per step", found["ms_per_step"]),
        ("tokens per second", found["output_tokens_per_s"]),
        ("MB of weights, and of keys and values", _megabytes(found)),
        ("milliseconds that these bytes need", found.get("least_ms", "-")),
        ("ratio", found.get("ratio", "-")),
        ("captured graphs", found["graphs"] or "-"),
        ("GPU idle, of the profiled steps and of those timed", idle),
        *((f"milliseconds, {phase}", spent) for phase, spent in found["ms_by_phase"].items()),
    ]
    print_table(title, ["what", "value"], rows)
    if found["kernels"]:
        columns = ["kernel", "us per step", "calls per step"]
        print_table("", columns, [list(kernel.values()) for kernel in found["kernels"]])


def _megabytes(found: dict[str, Any]) -> str:
    return " + ".join(f"{found[key] / 1e6:.0f}" for key in ("weight_bytes", "cache_bytes"))


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeSteps:
    """``batch_size`` sequences that decode together, from ``context`` tokens each on."""

    batch_size: int
    context: int
    """Tokens of each prompt."""
    steps: int
    """Steps per repeat."""
    repeats: int
    temperature: float

    @property
    def num_steps(self) -> int:
        """All steps, those included that are not measured."""
        return 2 + _WARM_UP + self.steps * self.repeats + _PROFILED

    @property
    def workload(self) -> Workload:
        """The requests; one ends only after all steps."""
        prefills = self.batch_size * -(-self.context // _CHUNK)
        num_output = self.num_steps + prefills + _WARM_UP
        return drawn(self.batch_size, (self.context, self.context), (num_output, num_output))

    def measure(self, llm: LLM, size: ModelSize) -> dict[str, Any]:
        """Return the medians over the repeats, and what a step in the middle must read.

        Raises:
            SettingsError: the engine does not decode all sequences together.
        """
        vocab_size = llm.engine.capacity.vocab_size
        requests = self.workload.requests(**({"vocab_size": vocab_size} if vocab_size else {}))
        sampling = SamplingParams(
            max_tokens=requests[0].output, ignore_eos=True, temperature=self.temperature
        )
        generations = llm.submit(
            [token_ids(request.prompt, None) for request in requests], sampling
        )
        try:
            self._prefill(llm, generations)
            seconds, phases, tokens = self._run(llm, generations)
            activity = self._activity(llm, size.layers[0].device)
        finally:
            llm.abort(generations)
        return self._figures(size, seconds, phases, tokens, activity)

    def _prefill(self, llm: LLM, generations: list[Generation]) -> None:
        """Run steps until all sequences decode, and the warm-up."""
        limit = self.workload.requests()[0].output - self.num_steps
        before = llm.engine.num_steps
        while not all(_outputs(generations)):
            llm.driver.step()
            if max(_outputs(generations)) > limit:
                raise self._apart(llm.engine.num_steps - before)
        for _ in range(_WARM_UP):
            llm.driver.step()

    def _run(
        self, llm: LLM, generations: list[Generation]
    ) -> tuple[list[float], dict[str, float], float]:
        """Return the seconds per step of every repeat, the seconds of each phase, and the tokens
        in the cache in the middle of all steps."""
        seconds = []
        phases, first = dict(llm.engine.seconds), _outputs(generations)
        for _ in range(self.repeats):
            started = perf_counter()
            for _ in range(self.steps):
                llm.driver.step()
            seconds.append((perf_counter() - started) / self.steps)
        last, count = _outputs(generations), self.steps * self.repeats
        if any(end - begin != count for begin, end in zip(first, last, strict=True)):
            raise self._apart(count)
        spent = {
            phase: (value - phases.get(phase, 0.0)) / count
            for phase, value in llm.engine.seconds.items()
        }
        return seconds, spent, self.batch_size * self.context + (sum(first) + sum(last)) / 2

    def _activity(self, llm: LLM, device: str) -> GpuActivity | None:
        """Return what the GPU did in some further steps; ``None``: there is none."""
        if not device.startswith("cuda"):
            return None

        def work() -> None:
            for _ in range(_PROFILED):
                llm.driver.step()

        return gpu_activity(work)

    def _figures(
        self,
        size: ModelSize,
        seconds: list[float],
        phases: dict[str, float],
        tokens: float,
        activity: GpuActivity | None,
    ) -> dict[str, Any]:
        step = median(seconds)
        return {
            **asdict(self),
            "ms_per_step": round(1000 * step, 4),
            "ms_per_step_min_max": [round(1000 * f(seconds), 4) for f in (min, max)],
            "output_tokens_per_s": round(self.batch_size / step, 1),
            "ms_by_phase": {phase: round(1000 * spent, 4) for phase, spent in phases.items()},
            "weight_bytes": size.weight_bytes,
            "cache_bytes": round(size.cache_bytes_per_token * tokens),
            "gpu_idle_share": activity and _rounded(activity.idle_share),
            "gpu_idle_share_unprofiled": activity
            and _rounded(activity.idle_share_of(1e6 * step * _PROFILED)),
            "kernels": activity and activity.longest(12, _PROFILED),
        }

    def _apart(self, steps: int) -> SettingsError:
        return SettingsError(
            f"the {self.batch_size} sequences of {self.context} tokens did not decode together in "
            f"{steps} steps; raise num_blocks, kv_cache_memory or the scheduler's max_num_seqs, or "
            "give a smaller --batch-size or --context"
        )


def _outputs(generations: list[Generation]) -> list[int]:
    """Return how many tokens each sequence has generated."""
    return [len(generation.group.sequences[0].output) for generation in generations]


def _rounded(share: float | None) -> float | None:
    return None if share is None else round(share, 4)


@dataclass(frozen=True, slots=True)
class GpuActivity:
    """Kernels, copies and fills that a GPU ran, one after another or at once."""

    intervals: tuple[tuple[str, float, float], ...]
    """The name of each, and the microseconds of its beginning and its end."""

    @classmethod
    def from_trace(cls, events: Iterable[Mapping[str, Any]]) -> GpuActivity:
        """Read the events of a trace in the Chrome format, as torch's profiler writes it."""
        return cls(
            tuple(
                (str(event["name"]), float(event["ts"]), float(event["ts"]) + float(event["dur"]))
                for event in events
                if event.get("ph") == "X" and event.get("cat") in _CATEGORIES
            )
        )

    @property
    def idle_share(self) -> float | None:
        """The share of the time, from the first kernel to the last, in which none ran; ``None``:
        there was none."""
        if not self.intervals:
            return None
        took = max(end for *_, end in self.intervals) - min(one[1] for one in self.intervals)
        return 1 - self._busy() / took if took > 0 else 0.0

    def idle_share_of(self, us: float) -> float | None:
        """The share in which none would run if all took ``us`` microseconds, as it did without the
        profiler, which slows the host down; ``None``: there was none."""
        return max(0.0, 1 - self._busy() / us) if self.intervals and us > 0 else None

    def _busy(self) -> float:
        """Microseconds in which any ran."""
        busy, until = 0.0, -inf
        for begin, end in sorted((begin, end) for _, begin, end in self.intervals):
            busy += max(0.0, end - max(begin, until))
            until = max(until, end)
        return busy

    def longest(self, count: int, repeats: int) -> list[dict[str, Any]]:
        """Return the kernels that took the most time: microseconds and calls per repeat."""
        seconds, calls = defaultdict[str, float](float), Counter(one[0] for one in self.intervals)
        for name, begin, end in self.intervals:
            seconds[name] += end - begin
        return [
            {
                "name": name[:120],
                "us": round(spent / repeats, 2),
                "calls": round(calls[name] / repeats, 2),
            }
            for name, spent in nlargest(count, seconds.items(), key=itemgetter(1))
        ]


def gpu_activity(work: Callable[[], object]) -> GpuActivity:
    """Run ``work`` under torch's profiler; it slows the host down, so measure time without it."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    on_gpu = torch.cuda.is_available()
    with profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]) as traced:
        work()
        if on_gpu:
            torch.cuda.synchronize()
    with TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        traced.export_chrome_trace(str(path))
        return GpuActivity.from_trace(json.loads(path.read_text("utf-8"))["traceEvents"])
