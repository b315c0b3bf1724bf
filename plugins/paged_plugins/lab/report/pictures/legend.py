"""Legends: a swatch of each line and its label, as part of the page, so that they wrap."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paged_plugins.lab.report.pictures.picture import LegendEntry
from paged_plugins.lab.report.pictures.style import INK, STYLES
from paged_plugins.lab.report.pictures.svg import inline_svg


def legend(
    name: str, labels: Sequence[str], *, lines: bool = True, colored: bool = True
) -> list[LegendEntry]:
    """Return the legend of series in the styles of :data:`STYLES`, in their order.

    Args:
        lines: show dashes beside the marker.
        colored: the colour tells series apart too, and means nothing else.
    """
    from matplotlib.figure import Figure

    entries = []
    for number, (label, style) in enumerate(zip(labels, STYLES, strict=False)):
        figure = Figure(figsize=(0.5 if lines else 0.2, 0.2))
        figure.set_layout_engine("none")
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set_axis_off()
        axes.set_xlim(0, 2)
        axes.set_ylim(-1, 1)
        color = style.color if colored else INK
        if lines:
            axes.plot([0, 2], [0, 0], color=color, linestyle=style.dashes)
        axes.plot([1], [0], color=color, marker=style.marker, linestyle="none")
        entries.append(LegendEntry(label=label, svg=inline_svg(figure, f"{name}-{number}", "")))
    return entries


def legend_above(axes: Any) -> None:
    """Put a legend of one line above the axes."""
    axes.legend(
        loc="lower left",
        bbox_to_anchor=(0, 0.97),
        ncols=4,
        frameon=False,
        borderaxespad=0,
        handlelength=1.4,
        columnspacing=1.2,
        handletextpad=0.5,
        fontsize=9.5,
    )
