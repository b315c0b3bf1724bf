"""Measures the steps of an engine, and fits a cost model to them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from statistics import median
from time import process_time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paged_core.engine.clock import Clock
from paged_core.engine.engine import Engine
from paged_core.request import Request
from paged_core.sampling_params import SamplingParams
from paged_core.settings.schema import EngineSettings
from paged_plugins.lab.calibration.scenes import Scene
from paged_plugins.lab.cost_model import CostModel, CostModelContext, StepWork
from paged_plugins.lab.cost_models.linear import PARTS, LinearCost, largest
from paged_plugins.lab.cost_models.weights_file import WeightsFile
from paged_plugins.lab.runs.run_workload import RunCollector
from paged_plugins.lab.runs.work_count import WatchedExecutor
from paged_plugins.lab.settings import LinearSettings
from paged_plugins.workloads.request import token_ids


class ProcessorClock:
    """The time that the processor worked for this process; what it sleeps is added at once.

    It is the time of a machine that nothing else uses, if the process works in one thread: a model
    with ``threads=1``.
    """

    def __init__(self) -> None:
        self._slept = 0.0

    def __call__(self) -> float:
        return process_time() + self._slept

    def sleep(self, seconds: float, /) -> None:
        """Move on at once; by nothing, if ``seconds`` is negative."""
        self._slept += max(0.0, seconds)


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """One step."""

    work: StepWork
    seconds: float
    """From before its requests were added to after its tokens were applied and recorded."""


_REST = 0.1
"""Seconds; many times as long as what counts as idle: caches cool down as between requests."""


def _steps(
    engine: Engine, scene: Scene, clock: Clock, new_ids: Iterator[int]
) -> Iterator[MeasuredStep]:
    """Run a scene to its end and yield its steps; no prompt was served before.

    Steps are recorded as in a run of a workload, so that what this costs is measured too.
    """
    collector, work = RunCollector(10**6), list[StepWork]()
    watched = engine.executor
    assert isinstance(watched, WatchedExecutor)
    watched.watch = work.append

    def prompt(length: int) -> Sequence[int]:
        first = 10**6 * next(new_ids)
        return token_ids([range(first, first + length)], engine.capacity.vocab_size)

    def add(prompt: Sequence[int], output: int, n: int = 1) -> None:
        sampling = SamplingParams(n=n, max_tokens=output, ignore_eos=True, detokenize=False)
        name = f"calibration {next(new_ids)}"
        engine.add(Request(id=name, prompt=tuple(prompt), sampling=sampling))

    engine.reset_prefix_cache()
    prompts = [prompt(scene.context) for _ in range(scene.batch)]
    late = [*(prompts[-1] if scene.shares else ()), *prompt(scene.late)]
    is_late_due, after_idle = scene.late > 0, int(scene.after_idle)
    clock.sleep(_REST * after_idle)
    began = clock()
    for each in prompts:
        add(each, scene.output, scene.n)
    while engine.has_unfinished:
        decoding = min(len(group.live[0].output) for group in engine.groups if group.live)
        if is_late_due and decoding >= scene.output // 2:
            add(late, 2)
            is_late_due = False
        outcome = engine.step()
        collector.step(engine, outcome, work, began, clock())
        seconds = clock() - began
        if len(work) == 1:
            yield MeasuredStep(replace(work[0], after_idle=after_idle), seconds)
            after_idle = 0
        work.clear()
        began = clock()


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Steps of an engine."""

    scenes: Sequence[Sequence[MeasuredStep]]
    """The steps of each scene; the time of a step is the median of its repeats."""
    max_model_len: int
    num_tokens: int
    """Slots of the cache."""


def measure(
    engine: Engine,
    chosen: Sequence[Scene],
    *,
    repeats: int,
    clock: Clock,
    advance: Callable[[], None] = lambda: None,
) -> Measurement:
    """Measure the steps of scenes.

    Args:
        engine: warmed up; it serves nothing else.
        clock: seconds.
        advance: called after each scene.
    """
    engine.executor, new_ids = WatchedExecutor(engine.executor), count()
    rounds: list[list[list[MeasuredStep]]] = []
    for _ in range(repeats):
        rounds.append([])
        for scene in chosen:
            rounds[-1].append(list(_steps(engine, scene, clock, new_ids)))
            advance()
    return Measurement(
        scenes=[_medians(runs) for runs in zip(*rounds, strict=True)],
        max_model_len=engine.capacity.max_model_len,
        num_tokens=engine.kv_cache.num_blocks * engine.kv_cache.block_size,
    )


def _medians(runs: Sequence[Sequence[MeasuredStep]]) -> list[MeasuredStep]:
    """Return each step of a scene with its median time; the steps of all runs are the same."""
    return [
        MeasuredStep(same[0].work, median(step.seconds for step in same))
        for same in zip(*runs, strict=True)
    ]


_Array = NDArray[np.float64]
_ROUNDS = 8
_SWEEPS = 2000
_LARGE = 0.1
"""Relative errors above it count less and less: others disturbed the step."""


def fit(steps: Sequence[MeasuredStep]) -> dict[str, float]:
    """Return the weights, none below 0, that predict these steps with the least relative error;
    that of a part which no step has is 0.

    Least squares of relative errors, in which steps with large ones count less (Huber, "Robust
    estimation of a location parameter", 1964), by coordinate descent.

    Args:
        steps: at least as many as there are weights.
    """
    seconds = np.array([step.seconds for step in steps])
    parts = [[1.0, *(getattr(s.work, part) for part in PARTS.values())] for s in steps]
    relative = np.array(parts) / seconds[:, None]
    found = robust_least_squares(relative, np.ones(len(steps)), np.zeros(relative.shape[1]))
    return dict(zip(("fixed", *PARTS), map(float, found), strict=True))


def robust_least_squares(matrix: _Array, target: _Array, start: _Array) -> _Array:
    """Return the vector, nowhere negative, that ``matrix`` takes closest to ``target``; lines with
    large errors count less. Where a column is 0, it is that of ``start``."""
    scales = np.abs(matrix).max(axis=0)
    scales[scales < 1e-300] = 1.0
    scaled, counts = matrix / scales, np.ones(len(target))
    found = start * scales
    for _ in range(_ROUNDS):
        found = _least_squares(scaled * counts[:, None], target * counts, found)
        errors = np.abs(scaled @ found - target)
        counts = np.sqrt(np.minimum(1.0, _LARGE / np.maximum(errors, 1e-12)))
    return np.asarray(found / scales)


def _least_squares(matrix: _Array, target: _Array, start: _Array) -> _Array:
    """Return the vector, nowhere negative, that ``matrix`` takes closest to ``target``."""
    square, product = matrix.T @ matrix, matrix.T @ target
    found: Any = start.copy()
    for _ in range(_SWEEPS):
        before = found.copy()
        for place in range(len(found)):
            if square[place, place] > 0:
                slope = product[place] - square[place] @ found
                found[place] = max(0.0, found[place] + slope / square[place, place])
        if np.abs(found - before).max() < 1e-12:
            break
    return np.asarray(found)


_FEW = 4
"""Sequences."""
_SHORT = 128
"""Tokens."""


def kind_of(work: StepWork) -> str:
    """Return what a step is called in a report of errors."""
    if work.swapped_blocks or work.copied_blocks:
        return "with swapped blocks" if work.swapped_blocks else "with copied blocks"
    if not work.prefill_tokens:
        few = work.decode_sequences <= _FEW
        return f"decode, {f'up to {_FEW}' if few else f'more than {_FEW}'} sequences"
    if work.decode_sequences:
        return "prefill and decode"
    short = work.prefill_tokens <= _SHORT
    return f"prefill, {f'up to {_SHORT}' if short else f'more than {_SHORT}'} tokens"


def relative_errors(model: CostModel, steps: Sequence[MeasuredStep]) -> dict[str, dict[str, Any]]:
    """Return the number of steps of each kind, and their relative errors.

    ``bias`` is the median of predicted / measured - 1, ``median`` and ``p90`` are of its size.
    """
    found: dict[str, list[float]] = defaultdict(list)
    for step in steps:
        found[kind_of(step.work)].append(model.seconds(step.work) / step.seconds - 1)
    return {
        kind: {"steps": len(errors), **error_summary(errors)}
        for kind, errors in sorted(found.items())
    }


def error_summary(errors: Sequence[float]) -> dict[str, float]:
    """Return the median of relative errors, and that and the 90th percentile of their size."""
    return {
        "bias": round(median(errors), 4),
        "median": round(median(map(abs, errors)), 4),
        "p90": round(float(np.quantile(np.abs(errors), 0.9)), 4),
    }


_HELD_OUT = 5
"""One scene of so many is not fitted to."""
_SWAP = "per_swapped_block"


def calibrate(
    measured: Measurement,
    settings: EngineSettings,
    *,
    swaps: Measurement | None = None,
    reasons: Mapping[str, str] | None = None,
    origin: Mapping[str, Any] | None = None,
) -> WeightsFile:
    """Fit the cost model ``linear`` to the steps of four fifths of the scenes.

    Args:
        measured: of the engine.
        settings: the engine's.
        swaps: of an engine that swaps, see :func:`swap_settings`. It gives the weight of a swapped
            block alone: with its small cache, all else is a little faster.
        reasons: by name of a weight, why it could not be measured, as far as that is known.
        origin: what was measured: model, machine.
    """
    fitted, held_out = _parted(measured)
    weights = _measured_weights(fitted)
    if swaps is not None:
        fitted_swaps, held_out_swaps = _parted(swaps)
        held_out += [step for step in held_out_swaps if step.work.swapped_blocks]
        of_swaps = _measured_weights(fitted_swaps)
        weights |= {name: each for name, each in of_swaps.items() if name == _SWAP}
    weights["fixed"] = max(weights["fixed"], 1e-6)
    unmeasured = {
        name: (reasons or {}).get(name, f"no step that was measured has {part.replace('_', ' ')}")
        for name, part in PARTS.items()
        if name not in weights
    }
    model = LinearCost(
        LinearSettings(**{**dict.fromkeys(unmeasured, 0.0), **weights}),
        CostModelContext(settings=settings),
    )
    steps = [step for one in (measured, swaps) if one for scene in one.scenes for step in scene]
    return WeightsFile(
        weights={name: float(f"{weight:.4g}") for name, weight in weights.items()},
        unmeasured=unmeasured,
        errors=relative_errors(model, held_out),
        max_model_len=measured.max_model_len,
        num_tokens=measured.num_tokens,
        largest=largest(step.work for step in steps),
        measured={**(origin or {}), "steps": len(steps)},
    )


def _parted(measured: Measurement) -> tuple[list[MeasuredStep], list[MeasuredStep]]:
    """Return the steps to fit to, and those that are held out."""
    parts: tuple[list[MeasuredStep], list[MeasuredStep]] = ([], [])
    for number, scene in enumerate(measured.scenes):
        parts[number % _HELD_OUT == 0].extend(scene)
    return parts


def _measured_weights(steps: Sequence[MeasuredStep]) -> dict[str, float]:
    """Return the weights of what these steps do; of what none of them does, there are none."""
    found = fit(steps) if steps else {}
    return {
        name: weight
        for name, weight in found.items()
        if name == "fixed" or any(getattr(step.work, PARTS[name]) for step in steps)
    }
