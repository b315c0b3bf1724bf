"""Arms that belong together: those that vary one thing around one arm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paged_plugins.lab.results import Arm, Results


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
    """Return the families of the arms, in order; one of more than ``limit`` arms is split."""
    by_label = {arm.label: arm for arm in results.arms}
    groups: dict[tuple[str, str | None], list[Arm]] = {}
    for arm in results.arms:
        if arm.compared_with != arm.label and arm.compared_with in by_label:
            groups.setdefault((arm.compared_with, arm.axis), []).append(arm)
    return [
        Family(
            title=_title(base, axis, single=len(groups) == 1),
            base=by_label[base],
            arms=arms[start : start + limit],
        )
        for (base, axis), arms in groups.items()
        for start in range(0, len(arms), limit)
    ]


def _title(base: str, axis: str | None, *, single: bool) -> str:
    if single:
        return ""
    return f"{axis} against {base}" if axis else f"against {base}"
