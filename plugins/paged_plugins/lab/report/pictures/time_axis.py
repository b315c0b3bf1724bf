"""An axis of milliseconds."""

from __future__ import annotations

from typing import Any

import numpy as np


def milliseconds(axes: Any, which: str = "x") -> None:
    """Label an axis of milliseconds, logarithmic where it spans more than a decade."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis = axes.xaxis if which == "x" else axes.yaxis
    low, high = (axes.dataLim.intervalx if which == "x" else axes.dataLim.intervaly).tolist()
    if low > 0 and high / low > 10:
        axes.set(**{f"{which}scale": "log"})
        decades = np.log10(high / low)
        axis.set_major_locator(LogLocator(subs=(1, 2, 5) if decades < 2 else (1,)))
        axis.set_minor_formatter(NullFormatter())
    else:
        axes.locator_params(axis=which, nbins=5)
    axis.set_major_formatter(FuncFormatter(_time))
    axes.set(**{f"{which}label": "log scale" if axis.get_scale() == "log" else ""})


def _time(value: float, _: Any) -> str:
    return f"{value / 1e3:,g} s" if value >= 1e3 else f"{value:g} ms"
