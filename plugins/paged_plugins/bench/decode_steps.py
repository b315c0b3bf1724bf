"""Steps in which all sequences decode: how long they take, and what they read."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any

from paged_core.errors import SettingsError
from paged_core.interfaces.model_size import ModelSize
from paged_core.llm import LLM
from paged_core.sampling_params import SamplingParams
from paged_core.text.generation import Generation
from paged_plugins.bench.gpu_activity import GpuActivity, gpu_activity
from paged_plugins.bench.workloads import Workload, drawn
from paged_plugins.workloads.request import token_ids

_WARM_UP = 8
"""Steps after the prefill that are not measured: graphs are captured, sizes are tuned."""
_PROFILED = 8
_CHUNK = 512
"""Prompt tokens that a step prefills at least, if there are as many."""


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
            "batch_size": self.batch_size,
            "context": self.context,
            "steps": self.steps,
            "repeats": self.repeats,
            "temperature": self.temperature,
            "ms_per_step": round(1000 * step, 4),
            "ms_per_step_min_max": [round(1000 * f(seconds), 4) for f in (min, max)],
            "output_tokens_per_s": round(self.batch_size / step, 1),
            "ms_by_phase": {phase: round(1000 * spent, 4) for phase, spent in phases.items()},
            "weight_bytes": size.weight_bytes,
            "cache_bytes": round(size.cache_bytes_per_token * tokens),
            "gpu_idle_share": activity and _rounded(activity.idle_share),
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
