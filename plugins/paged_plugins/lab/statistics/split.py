"""Splits the difference of two arms in the time that requests take by what it comes from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, stdev
from typing import Any, Final

from paged_plugins.lab.measures import value_text
from paged_plugins.lab.results.results import Results
from paged_plugins.lab.runs.queueing import Spent

_PARTS: Final = ("imbalance", "waiting", "hits", "recomputation", "pace")
COLUMNS: Final = ("arm", "workload", "completion mean", *_PARTS)
_ALMOST_ALL = 0.85
_ERRORS = 3.0
"""Standard errors over the seeds from which on a difference is not chance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Difference in the mean completion time on a workload: milliseconds a request."""

    arm: str
    compared_with: str
    workload: str
    change: float
    """The sum of the parts."""
    parts: Mapping[str, float]
    """``imbalance``: waiting while none waited at another replica. ``waiting``: other time before
    admission. ``hits`` and ``recomputation``: tokens that were not computed, or once more, each by
    the mean time of one in a prefill. ``pace``: the rest, as in larger batches."""
    is_chance: bool
    unserved: tuple[float, float]
    """Requests a run that the base and this arm did not serve, which are in no part."""

    @property
    def sentence(self) -> str | None:
        """Say that all of it is imbalance, if it is."""
        share = self.parts["imbalance"] / self.change if self.change else 0.0
        if self.is_chance or not _ALMOST_ALL <= share <= 1 / _ALMOST_ALL:
            return None
        kind = "gain" if self.change < 0 else "loss"
        return (
            f"{self.workload}: the {kind} of {self.arm} over {self.compared_with} is imbalance of "
            f"the replicas: {share:.0%} of {self.change:+,.3g} ms a request is waiting while "
            "another replica had nothing waiting"
        )

    @property
    def row(self) -> list[str]:
        """Its :data:`COLUMNS`."""
        numbers = (round(each, 6) + 0.0 for each in (self.change, *self.parts.values()))
        change, *parts = (f"{each:+,.3g} ms" for each in numbers)
        change += " of those served" if any(self.unserved) else ""
        return [self.arm, self.workload, change, *parts]

    def document(self) -> dict[str, Any]:
        """Return it as plain data."""
        told = {"arm": self.arm, "workload": self.workload, "change_ms": self.change}
        told |= {"parts_ms": dict(self.parts), "all_imbalance": self.sentence is not None}
        return told | {"unserved": [*self.unserved]}


def sentences(some: Sequence[Split]) -> list[str]:
    """Say what differences are imbalance alone."""
    return [each.sentence for each in some if each.sentence]


def left_out(some: Sequence[Split]) -> Iterator[str]:
    """Say which requests are in no part, but in the measures of completion."""
    for each in some:
        if any(each.unserved):
            base, own = (value_text("refused", count) for count in each.unserved)
            yield (
                f"{each.workload}: without the {base} requests a run that {each.compared_with} did "
                f"not serve, and the {own} of {each.arm}: the measure `completion mean` counts "
                "these to the end of the run"
            )


def splits(results: Results) -> Iterator[Split]:
    """Yield the split of each arm against what it is compared with, where runs tell it."""
    for arm in results.arms:
        if arm.compared_with == arm.label or arm.label in results.failures:
            continue
        for workload in results.workloads:
            ours, theirs = (
                {run.seed: run.facts.spent for run in results.runs_of.get((label, workload), ())}
                for label in (arm.label, arm.compared_with)
            )
            pairs = [(a, b) for seed, a in theirs.items() if a and (b := ours.get(seed))]
            found = [_parts(a, b) for a, b in pairs]
            changes = [sum(each.values()) for each in found]
            if any(changes):
                error = stdev(changes) / sqrt(len(changes)) if len(changes) > 1 else 0.0
                unserved = [
                    fmean(run.num_unserved for run in results.runs_of[label, workload])
                    for label in (arm.compared_with, arm.label)
                ]
                yield Split(
                    arm=arm.label,
                    compared_with=arm.compared_with,
                    workload=workload,
                    change=fmean(changes),
                    parts={part: fmean(each[part] for each in found) for part in _PARTS},
                    unserved=(unserved[0], unserved[1]),
                    is_chance=abs(fmean(changes)) < _ERRORS * error,
                )


def _parts(base: Spent, other: Spent) -> dict[str, float]:
    """Return the parts of a difference, which add up to it."""
    price = fmean(each.prefill / max(1.0, each.uncached) for each in (base, other))
    hits = price * (base.cached - other.cached)
    recomputation = price * (other.recomputed - base.recomputed)
    running = other.prefill + other.decode - base.prefill - base.decode
    return {
        "imbalance": other.imbalance - base.imbalance,
        "waiting": other.waiting - base.waiting,
        "hits": hits,
        "recomputation": recomputation,
        "pace": running - hits - recomputation,
    }
