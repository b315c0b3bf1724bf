"""Fits a cost model to what an engine measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from paged_core.settings import EngineSettings
from paged_plugins.lab.calibration.errors import relative_errors
from paged_plugins.lab.calibration.fit import fit
from paged_plugins.lab.calibration.measurement import Measurement
from paged_plugins.lab.calibration.step_meter import MeasuredStep
from paged_plugins.lab.cost_model import CostModelParts
from paged_plugins.lab.cost_models.linear import PARTS, LinearCost
from paged_plugins.lab.cost_models.settings import LinearSettings
from paged_plugins.lab.cost_models.weights_file import WeightsFile

_HELD_OUT = 5
"""One scene of so many is not fitted to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What was measured, and what predicts it."""

    weights: dict[str, float]
    unmeasured: dict[str, str]
    """Weights that are missing, and why."""
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
            unmeasured=self.unmeasured,
            max_model_len=self.max_model_len,
            num_tokens=self.num_tokens,
            measured={**measured, "steps": self.num_steps},
            errors=self.errors,
        )


def calibrate(
    measured: Measurement,
    settings: EngineSettings,
    *,
    swaps: Measurement | None = None,
    reasons: Mapping[str, str] | None = None,
) -> Calibration:
    """Fit the cost model ``linear`` to the steps of four fifths of the scenes.

    Args:
        measured: of the engine.
        settings: the engine's.
        swaps: of an engine that swaps, see :func:`swap_settings`.
        reasons: by name of a weight, why it could not be measured, as far as that is known.
    """
    scenes = [*measured.scenes, *(swaps.scenes if swaps else ())]
    fitted = list(chain.from_iterable(s for n, s in enumerate(scenes) if n % _HELD_OUT))
    unmeasured = {
        name: (reasons or {}).get(name, f"no step that was measured has {part.replace('_', ' ')}")
        for name, part in PARTS.items()
        if not any(getattr(step.work, part) for step in fitted)
    }
    weights = {name: each for name, each in fit(fitted).items() if name not in unmeasured}
    weights["fixed"] = max(weights["fixed"], 1e-6)
    model = LinearCost(
        LinearSettings(**{**dict.fromkeys(unmeasured, 0.0), **weights}),
        CostModelParts(settings=settings),
    )
    held_out: list[MeasuredStep] = [
        step for number, s in enumerate(scenes) if number % _HELD_OUT == 0 for step in s
    ]
    return Calibration(
        weights={name: float(f"{weight:.4g}") for name, weight in weights.items()},
        unmeasured=unmeasured,
        errors=relative_errors(model, held_out),
        num_steps=sum(map(len, scenes)),
        max_model_len=measured.max_model_len,
        num_tokens=measured.num_tokens,
    )
