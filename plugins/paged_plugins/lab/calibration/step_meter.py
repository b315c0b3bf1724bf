"""Measures the steps of a real engine, and what they compute."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count

from paged_core.clock import Clock
from paged_core.engine import Engine
from paged_core.request import Request
from paged_core.sampling_params import SamplingParams
from paged_plugins.lab.calibration.scene import Scene
from paged_plugins.lab.cost_model import StepWork
from paged_plugins.lab.runs.run_collector import RunCollector
from paged_plugins.lab.runs.work_count import WatchedExecutor
from paged_plugins.workloads.request import token_ids


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """One step."""

    work: StepWork
    seconds: float
    """From before its requests were added to after its tokens were applied and recorded."""


_REST = 0.1
"""Seconds; many times as long as what counts as idle: caches cool down as between requests."""


class StepMeter:
    """Runs scenes on an engine that serves nothing else.

    Steps are recorded as in a run of a workload, so that what this costs is measured too.

    Args:
        clock: seconds.
    """

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self._engine, self._clock = engine, clock
        self._work: list[StepWork] = []
        watched = WatchedExecutor(engine.executor)
        watched.watch = self._work.append
        engine.executor = watched
        self._names, self._contents = count(), count(0, 10**6)

    def run(self, scene: Scene) -> Iterator[MeasuredStep]:
        """Run a scene to its end and yield its steps; no prompt was served before."""
        engine, clock, collector = self._engine, self._clock, RunCollector(10**6)
        engine.reset_prefix_cache()
        prompts = [self._prompt(scene.context) for _ in range(scene.batch)]
        late = [*(prompts[-1] if scene.shares else ()), *self._prompt(scene.late)]
        is_late_due, after_idle = scene.late > 0, int(scene.after_idle)
        clock.sleep(_REST * after_idle)
        began = clock()
        for prompt in prompts:
            self._add(prompt, scene.output, scene.n)
        while engine.has_unfinished:
            decoding = min(len(group.live[0].output) for group in engine.groups if group.live)
            if is_late_due and decoding >= scene.output // 2:
                self._add(late, 2)
                is_late_due = False
            outcome = engine.step()
            collector.step(engine, outcome, self._work, began, clock())
            seconds = clock() - began
            if len(self._work) == 1:
                yield MeasuredStep(replace(self._work[0], after_idle=after_idle), seconds)
                after_idle = 0
            self._work.clear()
            began = clock()

    def _prompt(self, length: int) -> Sequence[int]:
        first = next(self._contents)
        return token_ids([range(first, first + length)], self._engine.capacity.vocab_size)

    def _add(self, prompt: Sequence[int], output: int, n: int = 1) -> None:
        sampling = SamplingParams(n=n, max_tokens=output, ignore_eos=True, detokenize=False)
        name = f"calibration {next(self._names)}"
        self._engine.add(Request(id=name, prompt=tuple(prompt), sampling=sampling))
