"""What the results of a comparison say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from paged_plugins.lab.measures.measure import MEASURES
from paged_plugins.lab.results.results import Results
from paged_plugins.lab.statistics.differences import Difference, differences
from paged_plugins.lab.statistics.sentences import sentences
from paged_plugins.lab.statistics.simultaneous import minimum_seeds
from paged_plugins.lab.statistics.wording import change_unit

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Findings:
    """What the results of a comparison say."""

    results: Results
    differences: Sequence[Difference]
    sentences: Sequence[str]

    @classmethod
    def of(cls, results: Results, measures: Sequence[str]) -> Findings:
        """Return the findings in some measures."""
        found = differences(results, CONFIDENCE, measures=measures)
        return cls(results, found, sentences(results, found, CONFIDENCE))

    def document(self) -> dict[str, Any]:
        """Return everything as plain data."""
        names = dict.fromkeys(each.measure for each in self.differences)
        return {
            "workload": self.results.workloads[0],
            "seeds": list(self.results.seeds),
            "confidence": CONFIDENCE,
            "minimum_seeds": minimum_seeds(CONFIDENCE),
            "arms": [
                {"arm": arm.label, "changes": dict(arm.changes), "compared_with": arm.compared_with}
                for arm in self.results.arms
            ],
            "measures": {name: _described(name) for name in names},
            "differences": [_row(each) for each in self.differences],
            "sentences": list(self.sentences),
            "runs": [
                {"arm": run.arm, "seed": run.seed, "measures": dict(run.measures)}
                for run in self.results.runs
            ],
        }


def _described(name: str) -> dict[str, Any]:
    measure = MEASURES[name]
    return {"title": measure.title, "unit": measure.unit, "better": measure.better}


def _row(each: Difference) -> dict[str, Any]:
    return {
        "arm": each.arm,
        "measure": each.measure,
        "base": each.base,
        "value": each.value,
        "change": each.change,
        "unit": change_unit(each).strip(),
        "low": each.low if isfinite(each.low) else None,
        "high": each.high if isfinite(each.high) else None,
        "moved": each.moved,
    }
