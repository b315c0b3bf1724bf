"""Which axes mattered: the main effects of a functional analysis of variance.

Hutter, Hoos and Leyton-Brown, "An efficient approach for assessing hyperparameter importance", ICML
2014. All combinations were evaluated, so the effects are means over them and need no model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean, pvariance
from typing import Any

from paged_plugins.lab.study.setting_text import setting_text


@dataclass(frozen=True, slots=True)
class MainEffect:
    """What an axis alone does to the objective."""

    axis: str
    share: float
    """Of the variance over all combinations; the rest is that of other axes, of axes together
    (interactions), and of chance."""
    means: Mapping[str, float]
    """By value: over all combinations that have it."""


def main_effects(
    found: Mapping[str, float], levels: Mapping[str, Mapping[str, Any]]
) -> list[MainEffect]:
    """Return the effect of each axis, the largest first.

    Args:
        found: the objective by arm.
        levels: the value of each axis by arm.
    """
    arms = [arm for arm in found if arm in levels]
    if not arms:
        return []
    total = pvariance([found[arm] for arm in arms])
    effects = []
    for axis in levels[arms[0]]:
        groups: dict[str, list[float]] = {}
        for arm in arms:
            groups.setdefault(setting_text(levels[arm][axis]), []).append(found[arm])
        means = {value: fmean(own) for value, own in groups.items()}
        explained = pvariance([means[setting_text(levels[arm][axis])] for arm in arms])
        effects.append(MainEffect(axis, explained / total if total else 0.0, means))
    return sorted(effects, key=lambda effect: -effect.share)
