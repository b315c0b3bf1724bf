"""Fits a cost model to what an engine measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
_SWAP = "per_swapped_block"


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
        swaps: of an engine that swaps, see :func:`swap_settings`. It gives the weight of a swapped
            block alone: with its small cache, all else is a little faster.
        reasons: by name of a weight, why it could not be measured, as far as that is known.
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
        CostModelParts(settings=settings),
    )
    return Calibration(
        weights={name: float(f"{weight:.4g}") for name, weight in weights.items()},
        unmeasured=unmeasured,
        errors=relative_errors(model, held_out),
        num_steps=sum(map(len, (*measured.scenes, *(swaps.scenes if swaps else ())))),
        max_model_len=measured.max_model_len,
        num_tokens=measured.num_tokens,
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
