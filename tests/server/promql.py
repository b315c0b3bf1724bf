"""As much of Prometheus' query language as dashboards use, over two scrapes."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

Labels = frozenset[tuple[str, str]]
Series = dict[Labels, float]
_SELECTOR = re.compile(r"([\w:]+)\{([^}]*)\}(?:\[([^\]]*)\])?")


class Scrapes:
    """Two scrapes of one server, and the seconds between them."""

    def __init__(self, before: str, after: str, seconds: float, **variables: str) -> None:
        self._before, self._after = _read(before), _read(after)
        self._seconds, self._variables = seconds, variables

    def evaluate(self, expression: str) -> Series:
        """Return the series that an expression gives at the second scrape.

        Raises:
            LookupError: a metric that it names was not scraped.
        """
        for name, value in self._variables.items():
            expression = expression.replace(f"${name}", value)
        left, slash, right = expression.partition(" / ")
        if slash:
            below = self.evaluate(right)
            return {
                labels: value / below[labels] if below[labels] else math.nan
                for labels, value in self.evaluate(left).items()
            }
        if match := re.fullmatch(r"histogram_quantile\(([\d.]+), (.*)\)", expression):
            return {frozenset(): _quantile(float(match[1]), self.evaluate(match[2]))}
        if match := re.fullmatch(r"sum by\((\w+)\) \((.*)\)", expression):
            sums: defaultdict[Labels, float] = defaultdict(float)
            for labels, value in self.evaluate(match[2]).items():
                sums[frozenset({(match[1], dict(labels)[match[1]])})] += value
            return dict(sums)
        if match := re.fullmatch(r"(rate|increase)\((.*)\)", expression):
            after, before = (
                self._select(match[2], self._after),
                self._select(match[2], self._before),
            )
            per = self._seconds if match[1] == "rate" else 1.0
            return {key: (value - before.get(key, 0.0)) / per for key, value in after.items()}
        return self._select(expression, self._after)

    def _select(self, selector: str, scrape: dict[str, Series]) -> Series:
        match = _SELECTOR.fullmatch(selector)
        assert match, selector
        wanted = dict(re.findall(r'(\w+)="([^"]*)"', match[2]))
        if match[1] not in scrape:
            raise LookupError(match[1])
        return {
            labels: value
            for labels, value in scrape[match[1]].items()
            if wanted.items() <= dict(labels).items()
        }


def _read(text: str) -> dict[str, Series]:
    found: defaultdict[str, Series] = defaultdict(dict)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found[sample.name][frozenset(sample.labels.items())] = sample.value
    return found


def _quantile(share: float, buckets: Series) -> float:
    """Interpolate within the bucket that holds a share of the observations, as Prometheus does."""
    ends: list[tuple[float, float]] = sorted(
        (float(dict(labels)["le"]), count) for labels, count in buckets.items()
    )
    rank = share * ends[-1][1]
    start, below = 0.0, 0.0
    for end, count in ends:
        if count >= rank and count > below:
            return (
                start
                if math.isinf(end)
                else start + (end - start) * (rank - below) / (count - below)
            )
        start, below = end, count
    return math.nan


def values(series: Series) -> list[Any]:
    """Return the numbers of series."""
    return list(series.values())
