"""What an engine took for the steps of scenes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from paged_core.clock import Clock
from paged_core.engine import Engine
from paged_plugins.lab.calibration.scene import Scene
from paged_plugins.lab.calibration.step_meter import MeasuredStep, StepMeter


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
    meter = StepMeter(engine, clock)
    rounds: list[list[list[MeasuredStep]]] = []
    for _ in range(repeats):
        rounds.append([])
        for scene in chosen:
            rounds[-1].append(list(meter.run(scene)))
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
