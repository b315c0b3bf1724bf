"""Steps of a run averaged over equal stretches of time, as many as a picture can show."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from paged_plugins.lab.runs.run_record import StepSample

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MOST = 120
_SAMPLES_EACH = 4


class Binned:
    """The steps of a run, by stretches of time."""

    def __init__(self, steps: Sequence[StepSample]) -> None:
        """Sort steps, at least one, into stretches."""
        count = min(_MOST, max(1, len(steps) // _SAMPLES_EACH))
        end = max(each.time + each.seconds for each in steps)
        edges = np.linspace(0, end or 1.0, count + 1)
        self.times: NDArray[np.float64] = (edges[:-1] + edges[1:]) / 2
        """The middle of each, in seconds."""
        self._steps = steps
        middles = [each.time + each.seconds / 2 for each in steps]
        self._bins = np.clip(np.searchsorted(edges, middles, side="right") - 1, 0, count - 1)

    def mean(self, value: Callable[[StepSample], float]) -> NDArray[np.float64]:
        """Return the mean of a value over the steps of each stretch; 0 where there is none."""
        count = len(self.times)
        sums = np.bincount(self._bins, [value(each) for each in self._steps], count)
        means: NDArray[np.float64] = sums / np.maximum(1, np.bincount(self._bins, minlength=count))
        return means
