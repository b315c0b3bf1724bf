"""Times between measured ones: curves of one size and surfaces of two, which never fall."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from math import exp, log

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


_MOST_LINES = 4096
"""Rows of a surface that are kept ready."""


class Curve:
    """Seconds by one size, linear in the logarithms of both between the measured points.

    Below the smallest measured size its time is taken, beyond the largest one the time grows as it
    does between the last two. A time that was measured to be longer than that of a larger size is
    lowered to it: rows can be padded, and now and then a time is an outlier.

    Args:
        sizes: ascending, above 0.
        seconds: one for each, above 0.
    """

    def __init__(self, sizes: Sequence[float], seconds: Sequence[float]) -> None:
        risen = np.minimum.accumulate(np.asarray(seconds, float)[::-1])[::-1]
        self._logs = [log(size) for size in sizes]
        self._values: list[float] = np.log(risen).tolist()
        self._least = float(risen[0])
        self.largest = float(sizes[-1])

    def seconds(self, size: float) -> float:
        """Return the time of a size."""
        logs, values = self._logs, self._values
        place = log(size) if size > 0 else logs[0]
        if place <= logs[0] or len(logs) == 1:
            return self._least
        upper = min(bisect_right(logs, place), len(logs) - 1)
        lower = upper - 1
        slope = (values[upper] - values[lower]) / (logs[upper] - logs[lower])
        return exp(values[lower] + slope * (place - logs[lower]))


class Surface:
    """Seconds by two sizes, linear in both between the points of a grid, and never falling.

    Beyond the grid the time goes on as between its last two points, and no slower for more of the
    other size.

    Args:
        rows, columns: ascending.
        seconds: of shape ``(len(rows), len(columns))``.
    """

    def __init__(self, rows: Sequence[float], columns: Sequence[float], seconds: Floats) -> None:
        risen = np.maximum.accumulate(np.maximum.accumulate(seconds, axis=0), axis=1)
        more = np.maximum.accumulate(risen[-1] - risen[-2])
        risen = np.vstack([risen, risen[-1] + more])
        more = np.maximum.accumulate(risen[:, -1] - risen[:, -2])
        risen = np.hstack([risen, (risen[:, -1] + more)[:, None]])
        self._rows = [*rows, 2 * rows[-1] - rows[-2]]
        self._columns = [*columns, 2 * columns[-1] - columns[-2]]
        self._seconds = risen
        self._lines: dict[float, tuple[list[float], list[float]]] = {}
        """By row, the times at all columns and how they rise after each: most steps of a run have
        as many rows as some before."""

    def seconds(self, row: float, column: float) -> float:
        """Return the time at a point."""
        times, slopes = self._lines.get(row) or self._line(row)
        columns = self._columns
        if column <= columns[0]:
            return times[0]
        place = min(bisect_right(columns, column), len(slopes)) - 1
        return times[place] + slopes[place] * (column - columns[place])

    def _line(self, row: float) -> tuple[list[float], list[float]]:
        lower = min(max(bisect_right(self._rows, row) - 1, 0), len(self._rows) - 2)
        share = max((row - self._rows[lower]) / (self._rows[lower + 1] - self._rows[lower]), 0.0)
        line = self._seconds[lower] + share * (self._seconds[lower + 1] - self._seconds[lower])
        found = line.tolist(), (np.diff(line) / np.diff(self._columns)).tolist()
        if len(self._lines) >= _MOST_LINES:
            self._lines.clear()
        self._lines[row] = found
        return found
