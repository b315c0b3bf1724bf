"""Figures of one engine over all windows of a text, beside those of the base."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import exp
from statistics import fmean
from typing import TYPE_CHECKING, Any

from paged_plugins.bench.quality_scores import WindowScores

if TYPE_CHECKING:
    from torch import Tensor

_LARGEST_LOGARITHM = 700.0
"""Of a perplexity: of more there is no floating-point number."""


@dataclass(frozen=True, slots=True)
class RowDifference:
    """How far two rows of logits [V] are apart."""

    mean: float
    """Of the absolute differences."""
    largest: float
    divergence: float
    """Kullback-Leibler divergence of the row from the base's, in nats."""

    @classmethod
    def between(cls, base: Tensor, other: Tensor) -> RowDifference:
        """Compare in float64: the divergence of close rows is near the rounding of float32."""
        base, other = base.double(), other.double()
        apart = (base - other).abs()
        expected = base.log_softmax(0)
        divergence = (expected.exp() * (expected - other.log_softmax(0))).sum()
        return cls(float(apart.mean()), float(apart.max()), max(0.0, float(divergence)))


@dataclass(slots=True)
class Tally:
    """Collects what one engine predicts, window by window."""

    prefilled: list[float] = field(default_factory=list)
    decoded: list[float] = field(default_factory=list)
    num_same: int = 0
    """Places where the base's best token is the best here."""
    differences: list[RowDifference] = field(default_factory=list)
    """Of each decoded token."""

    def add(self, scores: WindowScores, base: WindowScores) -> None:
        """Take the scores of a window, and those of the base of the same window."""
        self.prefilled += scores.prefilled
        self.decoded += scores.decoded
        pairs = zip(scores.best_tokens, base.best_tokens, strict=True)
        self.num_same += sum(ours == theirs for ours, theirs in pairs)
        if scores is not base:
            self.differences += map(RowDifference.between, base.logits_DV, scores.logits_DV)

    def figures(self) -> dict[str, Any]:
        """Return perplexities."""
        return {
            "perplexity": _perplexity(self.prefilled + self.decoded),
            "perplexity_prefilled": _perplexity(self.prefilled),
            "perplexity_decoded": _perplexity(self.decoded),
        }

    def figures_beside(self, base: Tally) -> dict[str, Any]:
        """Return perplexities, and how far all is from the base."""
        found = self.figures()
        count = len(self.prefilled) + len(self.decoded)
        rows = self.differences
        return found | {
            "perplexity_ratio": _rounded(found["perplexity"] / base.figures()["perplexity"]),
            "logprob_difference_prefilled": _mean_difference(self.prefilled, base.prefilled),
            "logprob_difference_decoded": _mean_difference(self.decoded, base.decoded),
            "logit_difference_mean": _rounded(fmean(row.mean for row in rows)),
            "logit_difference_max": _rounded(max(row.largest for row in rows)),
            "divergence_mean": _rounded(fmean(row.divergence for row in rows)),
            "divergence_max": _rounded(max(row.divergence for row in rows)),
            "same_best_token": _rounded(self.num_same / count),
        }


def _perplexity(logprobs: list[float]) -> float | None:
    return _rounded(exp(min(-fmean(logprobs), _LARGEST_LOGARITHM))) if logprobs else None


def _mean_difference(ours: list[float], theirs: list[float]) -> float | None:
    """Return the mean absolute difference."""
    if not ours:
        return None
    return _rounded(fmean(abs(one - other) for one, other in zip(ours, theirs, strict=True)))


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")
