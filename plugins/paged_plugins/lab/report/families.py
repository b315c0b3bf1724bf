"""Arms that are read side by side: those that are compared with the same arm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from paged_plugins.lab.results.results import Results
from paged_plugins.lab.study.arm import Arm


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """An arm, and those that are compared with it."""

    title: str
    base: Arm
    arms: Sequence[Arm]
    """Without the base; at most ``limit`` of :func:`families`."""

    @property
    def labels(self) -> list[str]:
        """Return the labels of all of its arms, the base first."""
        return [self.base.label, *(arm.label for arm in self.arms)]


def families(results: Results, limit: int) -> list[Family]:
    """Return the families of the arms, in order; one of more than ``limit`` arms is split.

    It is split between axes where that makes parts that fit.
    """
    by_label = {arm.label: arm for arm in results.arms}
    around: dict[str, list[Arm]] = {}
    for arm in results.arms:
        if arm.compared_with != arm.label and arm.compared_with in by_label:
            around.setdefault(arm.compared_with, []).append(arm)
    made = []
    for base, arms in around.items():
        parts = _parts(arms, limit)
        for part in parts:
            words = _axes(part) if len(parts) > 1 else ""
            against = f"against {base}" if len(around) > 1 else ""
            title = " ".join(filter(None, (words, against)))
            made.append(Family(title=title, base=by_label[base], arms=part))
    return made


def _parts(arms: Sequence[Arm], limit: int) -> list[list[Arm]]:
    """Split arms into parts of at most ``limit``, an axis in one part if it fits."""
    parts: list[list[Arm]] = [[]]
    for _, group in groupby(arms, key=lambda arm: arm.axis):
        axis = list(group)
        if len(parts[-1]) + len(axis) > limit:
            parts.append([])
        for arm in axis:
            if len(parts[-1]) == limit:
                parts.append([])
            parts[-1].append(arm)
    return [part for part in parts if part]


def _axes(arms: Sequence[Arm]) -> str:
    axes = dict.fromkeys(arm.axis or arm.label for arm in arms)
    return ", ".join(axes)
