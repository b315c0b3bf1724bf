"""Which arm moved what, and by how much: a dot and an interval for each difference."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any

from paged_plugins.lab.measures import MEASURES, Measure
from paged_plugins.lab.report.difference_table import Found, verdict
from paged_plugins.lab.report.pictures.legend import legend
from paged_plugins.lab.report.pictures.picture import Gallery, Picture, PictureGroup
from paged_plugins.lab.report.pictures.style import (
    BLUE,
    INK,
    STYLES,
    VERMILLION,
    WIDTH,
    shortened,
)
from paged_plugins.lab.report.pictures.svg import inline_svg, printable
from paged_plugins.lab.results import Results

if TYPE_CHECKING:
    from paged_plugins.lab.statistics.differences import Difference

_COLORS = {"better": BLUE, "worse": VERMILLION, "differs": INK, "": INK}
_ROW = 16.0
"""Points."""
_MOST_ROWS = 60


def forest(results: Results, found: Found) -> Gallery:
    """Return a picture for each measure that is shown by default and differs anywhere."""
    compared = [arm.label for arm in results.arms if arm.compared_with != arm.label]
    arms = [label for label in compared if any(place[0] == label for place in found)]
    workloads = [name for name in results.workloads if any(place[1] == name for place in found)]
    chunk = max(1, _MOST_ROWS // max(1, len(workloads)))
    pictures = []
    for measure in MEASURES.values():
        for start in range(0, len(arms), chunk):
            rows = _rows(found, arms[start : start + chunk], workloads, measure)
            if measure.shown and any(each.change for _, _, each in rows):
                name = f"forest-{len(pictures)}"
                pictures.append(_picture(name, measure, rows, len(workloads)))
    several = len(workloads) > 1
    shown = workloads[: len(STYLES)]
    group = PictureGroup(
        title="", legend=legend("forest", shown, lines=False) if several else [], pictures=pictures
    )
    return Gallery(
        question="Which arm moved what, and by how much?",
        how_to_read=(
            "Dot and line: a difference and its confidence interval. Filled: it moved, and is better"
            " (blue) or worse (vermillion). Hollow: it did not move. Measures that are equal in all"
            " arms are not drawn."
        ),
        groups=[group] if pictures else [],
    )


def _rows(
    found: Found, arms: Sequence[str], workloads: Sequence[str], measure: Measure
) -> list[tuple[str, int, Difference]]:
    places = ((arm, number) for arm in arms for number in range(len(workloads)))
    return [
        (arm, number, found[arm, workloads[number], measure.name])
        for arm, number in places
        if (arm, workloads[number], measure.name) in found
    ]


def _picture(
    name: str, measure: Measure, rows: Sequence[tuple[str, int, Difference]], num_workloads: int
) -> Picture:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH / 72, (58 + _ROW * len(rows)) / 72))
    axes = figure.add_subplot()
    axes.axvline(0, color=INK, linewidth=1)
    for place, (_, number, difference) in enumerate(rows):
        _draw(axes, place, number, difference)
    labels = {}
    for place, (arm, _, _) in enumerate(rows):
        labels.setdefault(arm, []).append(place)
    axes.set_yticks(
        [sum(places) / len(places) for places in labels.values()],
        [printable(shortened(arm, 24)) for arm in labels],
    )
    axes.tick_params("y", length=0)
    axes.grid(visible=False, axis="y")
    axes.spines["left"].set_visible(False)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlabel(_unit(measure, rows))
    axes.locator_params(axis="x", nbins=5)
    axes.set_title(measure.title, loc="left")
    moved = sum(difference.moved for _, _, difference in rows)
    text = f"{measure.title}: differences of {len(labels)} arms; {moved} of {len(rows)} moved"
    return Picture(
        title=measure.title, description=text, svg=inline_svg(figure, name, f"{text}.")
    )


def _draw(axes: Any, place: int, workload: int, difference: Difference) -> None:
    color = _COLORS[verdict(difference)]
    if isfinite(difference.low) and isfinite(difference.high):
        axes.plot([difference.low, difference.high], [place, place], color=color, linewidth=1.4)
    axes.plot(
        [difference.change],
        [place],
        marker=STYLES[workload % len(STYLES)].marker,
        color=color,
        markerfacecolor=color if difference.moved else "#ffffff",
    )


def _unit(measure: Measure, rows: Sequence[tuple[str, int, Difference]]) -> str:
    relative = {difference.relative for _, _, difference in rows}
    unit = "points" if measure.is_share else measure.unit or "count"
    name = "change in %" if relative == {True} else f"change in {unit}"
    if len(relative) > 1:
        name = f"change in % (from 0: in {unit})"
    return {"higher": f"{name}; right is better", "lower": f"{name}; left is better"}.get(
        measure.better or "", name
    )
