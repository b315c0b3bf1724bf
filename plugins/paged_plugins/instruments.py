"""Counters, gauges and histograms, and the text in which Prometheus reads them.

Source of the format: "Text-based format", version 0.0.4, of the Prometheus documentation.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate

Labels = Mapping[str, str]


class Counter:
    """A number that only grows; with ``label``, one for each value of that label."""

    kind = "counter"

    def __init__(self, name: str, about: str, label: str | None = None) -> None:
        self.name, self.about, self.label = name, about, label
        self._values: dict[str, float] = {} if label else {"": 0}

    def add(self, amount: float, value: str = "") -> None:
        """Add an amount, which is not negative.

        Args:
            value: of the label, if it has one.
        """
        self._values[value] = self._values.get(value, 0) + amount

    def snapshot(self) -> float | dict[str, float]:
        """Return the number, or the numbers by value of the label."""
        return dict(self._values) if self.label else self._values[""]

    def samples(self, labels: Labels) -> Iterator[str]:
        """Yield the lines of its values."""
        for value, number in self._values.items():
            own = {self.label: value} if self.label else {}
            yield _sample(f"{self.name}_total", {**labels, **own}, number)


class Gauge:
    """A number that may go up and down; with ``label``, one for each value of that label.

    Args:
        fixed: labels that say all there is to say; the number is then 1.
    """

    kind = "gauge"

    def __init__(
        self, name: str, about: str, label: str | None = None, fixed: Labels | None = None
    ) -> None:
        self.name, self.about, self.label, self._fixed = name, about, label, fixed or {}
        self._values: dict[str, float] = {} if label else {"": 1 if fixed else 0}

    def set(self, amount: float, value: str = "") -> None:
        """Replace the number.

        Args:
            value: of the label, if it has one.
        """
        self._values[value] = amount

    def snapshot(self) -> float | dict[str, float]:
        """Return the number, or the numbers by value of the label."""
        return dict(self._values) if self.label else self._values[""]

    def samples(self, labels: Labels) -> Iterator[str]:
        """Yield the lines of its values."""
        for value, number in self._values.items():
            own = {self.label: value} if self.label else {}
            yield _sample(self.name, {**labels, **self._fixed, **own}, number)


class Histogram:
    """Counts of observations that were at most so large, for each of several bounds.

    Args:
        bounds: the upper ends of the buckets, each included, in ascending order; a last bucket,
            without end, is added.
    """

    kind = "histogram"

    def __init__(self, name: str, about: str, bounds: Sequence[float]) -> None:
        self.name, self.about, self.bounds = name, about, tuple(bounds)
        self._counts = [0] * (len(self.bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        """Add ``count`` observations of the same value."""
        self._counts[bisect_left(self.bounds, value)] += count
        self._sum += value * count

    def snapshot(self) -> dict[str, float | dict[float, int]]:
        """Return ``count``, ``sum`` and ``buckets``: by bound, how many were at most so large."""
        totals = list(accumulate(self._counts))
        buckets = dict(zip(self.bounds, totals, strict=False))
        return {"count": totals[-1], "sum": self._sum, "buckets": buckets}

    def samples(self, labels: Labels) -> Iterator[str]:
        """Yield the lines of its buckets, its sum and its count."""
        ends = [*map(_number, self.bounds), "+Inf"]
        totals = list(accumulate(self._counts))
        for end, total in zip(ends, totals, strict=True):
            yield _sample(f"{self.name}_bucket", {**labels, "le": end}, total)
        yield _sample(f"{self.name}_sum", labels, self._sum)
        yield _sample(f"{self.name}_count", labels, totals[-1])


Instrument = Counter | Gauge | Histogram


def exposition(instruments: Iterable[Instrument], labels: Labels) -> str:
    """Return the values of instruments as text that Prometheus reads.

    Args:
        labels: of every value.
    """
    lines: list[str] = []
    for each in instruments:
        name = f"{each.name}_total" if isinstance(each, Counter) else each.name
        lines.append(f"# HELP {name} {_escaped(each.about, quotes=False)}")
        lines.append(f"# TYPE {name} {each.kind}")
        lines += each.samples(labels)
    return "\n".join(lines) + "\n"


def merged_exposition(texts: Iterable[str]) -> str:
    """Return the values of several texts of :func:`exposition`, each name with all its values."""
    families: dict[str, list[str]] = {}
    for text in texts:
        for about, kind, *samples in _families(text):
            families.setdefault(about, [about, kind]).extend(samples)
    return "".join(f"{line}\n" for lines in families.values() for line in lines)


def _families(text: str) -> Iterator[list[str]]:
    """Yield the lines about each name: what it is, of which kind, and its values."""
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith("# HELP ") and lines:
            yield lines
            lines = []
        lines.append(line)
    if lines:
        yield lines


def _sample(name: str, labels: Labels, value: float) -> str:
    pairs = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
    return f"{name}{{{pairs}}} {_number(value)}"


def _number(value: float) -> str:
    return str(float(value)).replace("inf", "+Inf").replace("nan", "NaN")


def _escaped(text: str, *, quotes: bool = True) -> str:
    text = text.replace("\\", r"\\").replace("\n", r"\n")
    return text.replace('"', r"\"") if quotes else text
