"""Measures the steps of an engine and fits a cost model to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from statistics import median
from typing import Any

from paged_core.clock import Clock
from paged_core.engine import Engine
from paged_core.errors import SettingsError
from paged_core.settings import EngineSettings
from paged_plugins.lab.calibration.errors import relative_errors
from paged_plugins.lab.calibration.fit import fit
from paged_plugins.lab.calibration.scene import Scene, scenes
from paged_plugins.lab.calibration.step_meter import MeasuredStep, StepMeter
from paged_plugins.lab.cost_model import CostModelParts
from paged_plugins.lab.cost_models.linear import LinearCost
from paged_plugins.lab.cost_models.settings import LinearSettings
from paged_plugins.lab.cost_models.weights_file import WeightsFile

_HELD_OUT = 5
"""One scene of so many is not fitted to."""
_LEAST_SCENES = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What was measured, and what predicts it."""

    weights: dict[str, float]
    errors: dict[str, dict[str, Any]]
    """On steps that the weights were not fitted to, by kind of step."""
    num_steps: int
    """Steps that were measured, each several times."""
    max_model_len: int
    num_tokens: int
    """Slots of the cache."""

    def file(self, measured: dict[str, Any]) -> WeightsFile:
        """Return what is written of it; ``measured`` says on what."""
        return WeightsFile(
            weights=self.weights,
            max_model_len=self.max_model_len,
            num_tokens=self.num_tokens,
            measured={**measured, "steps": self.num_steps},
            errors=self.errors,
        )


def choose_scenes(engine: Engine, num_steps: int) -> list[Scene]:
    """Return scenes of about ``num_steps`` steps, spread over what an engine can serve.

    Raises:
        SettingsError: it can serve too few.
    """
    kv_cache = engine.kv_cache
    slots = kv_cache.num_blocks * kv_cache.block_size
    found = list(scenes(engine.capacity.max_model_len, slots, engine.scheduler.max_num_seqs))
    if len(found) < _LEAST_SCENES:
        raise SettingsError(
            f"an engine of {slots:,} cached tokens and max_model_len="
            f"{engine.capacity.max_model_len} is too small to be calibrated; raise num_blocks or "
            "max_model_len"
        )
    long = [scene for scene in found if scene.output > 2]
    output = max(4, min(64, round((num_steps - 3 * len(found)) / len(long))))
    return [replace(scene, output=output) if scene.output > 2 else scene for scene in found]


def calibrate(
    engine: Engine,
    settings: EngineSettings,
    chosen: Sequence[Scene],
    *,
    repeats: int,
    clock: Clock,
    advance: Callable[[], None] = lambda: None,
) -> Calibration:
    """Measure the steps of all scenes and fit the cost model ``linear`` to four fifths of them.

    The time of a step is the median of its repeats.

    Args:
        engine: warmed up; it serves nothing else.
        clock: seconds.
        advance: called after each scene.
    """
    meter = StepMeter(engine, clock)
    rounds: list[list[list[MeasuredStep]]] = []
    for _ in range(repeats):
        rounds.append([])
        for scene in chosen:
            rounds[-1].append(list(meter.run(scene)))
            advance()
    measured = [_medians(runs) for runs in zip(*rounds, strict=True)]
    fitted = chain.from_iterable(s for n, s in enumerate(measured) if n % _HELD_OUT)
    weights = fit(list(fitted))
    weights["fixed"] = max(weights["fixed"], 1e-6)
    model = LinearCost(
        LinearSettings(**{**dict.fromkeys(_UNMEASURED, 0.0), **weights}),
        CostModelParts(settings=settings),
    )
    held_out = [step for number, s in enumerate(measured) if number % _HELD_OUT == 0 for step in s]
    return Calibration(
        weights={name: float(f"{weight:.4g}") for name, weight in weights.items()},
        errors=relative_errors(model, held_out),
        num_steps=sum(map(len, measured)),
        max_model_len=engine.capacity.max_model_len,
        num_tokens=engine.kv_cache.num_blocks * engine.kv_cache.block_size,
    )


_UNMEASURED = ("per_copied_block", "per_swapped_block")


def _medians(runs: Sequence[Sequence[MeasuredStep]]) -> list[MeasuredStep]:
    """Return each step of a scene with its median time; the steps of all runs are the same."""
    return [
        MeasuredStep(same[0].work, median(step.seconds for step in same))
        for same in zip(*runs, strict=True)
    ]
