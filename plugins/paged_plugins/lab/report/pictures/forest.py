"""Pictures of differences: a dot and an interval for each, by measure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, cycle, groupby, product
from typing import TYPE_CHECKING

from paged_plugins.lab.measures import MEASURES, Measure
from paged_plugins.lab.report.contents import Found
from paged_plugins.lab.report.pictures.drawing import (
    BLUE,
    INK,
    PAPER,
    STYLES,
    VERMILLION,
    Gallery,
    PictureGroup,
    inline_svg,
    legend,
    new_axes,
    printable,
    wrapped,
)
from paged_plugins.lab.results.results import Results

if TYPE_CHECKING:
    from paged_plugins.lab.statistics.differences import Difference

_COLORS = {"better": BLUE, "worse": VERMILLION}
_ROW, _LABEL = 15.0, 29.0
"""Points: of a difference, and of the label of an arm at least."""
_MOST_ROWS = 40


def forest(results: Results, found: Found, most: int) -> Gallery:
    """Return a picture for each measure that is shown by default and differs anywhere.

    Args:
        most: pictures to draw.
    """
    compared = [arm.label for arm in results.arms if arm.compared_with != arm.label]
    arms = [label for label in compared if any(place[0] == label for place in found)]
    workloads = [name for name in results.workloads if any(place[1] == name for place in found)]
    chunk = max(1, _MOST_ROWS // max(1, len(workloads)))

    def rows_of(measure: Measure, some: Sequence[str]) -> list[Difference]:
        places = product(some, workloads, [measure.name])
        return [found[place] for place in places if place in found]

    plots = [
        (measure, rows)
        for measure in MEASURES.values()
        for start in range(0, len(arms), chunk)
        if measure.shown and (rows := rows_of(measure, arms[start : start + chunk]))
        if any(each.change for each in rows)
    ]
    markers = dict(zip(workloads, cycle(style.marker for style in STYLES), strict=False))
    pictures = [
        _picture(f"forest-{place}", measure, rows, markers)
        for place, (measure, rows) in enumerate(plots[:most])
    ]
    several = workloads if len(workloads) > 1 else []
    marks = legend("forest-legend", several, lines=False, colored=False)
    return Gallery(
        question="Which arm moved what, and by how much?",
        how_to_read=(
            "Mark and line: a difference and its confidence interval. Filled: better (blue)"
            " or worse (vermillion). Hollow: undecided. Measures that are equal"
            " in all arms are not drawn."
        ),
        groups=[PictureGroup(legend=marks, pictures=pictures)],
        num_left_out=max(0, len(plots) - most),
    )


def _picture(
    name: str, measure: Measure, rows: Sequence[Difference], markers: Mapping[str, str]
) -> str:
    labels: dict[str, list[float]] = {}
    top = 0.0
    for arm, group in groupby(rows, key=lambda each: each.arm):
        number = len(list(group))
        height = max(_ROW * (number + 0.8), _LABEL)
        middle = top + height / 2
        labels[arm] = [middle + _ROW * (each - (number - 1) / 2) for each in range(number)]
        top += height
    figure, axes = new_axes((58 + top) / 72)
    axes.axvline(0, color=INK, linewidth=1)
    for place, each in zip(chain(*labels.values()), rows, strict=True):
        color, at = _COLORS.get(each.verdict, INK), (place, place)
        if each.has_interval:
            axes.plot([each.low, each.high], at, color=color, linewidth=1.4)
        face = color if each.moved else PAPER
        marker = markers[each.workload]
        axes.plot([each.change], [place], marker=marker, color=color, markerfacecolor=face)
    axes.set_yticks(
        [sum(places) / len(places) for places in labels.values()],
        [printable(wrapped(arm)) for arm in labels],
    )
    axes.tick_params("y", length=0)
    axes.grid(visible=False, axis="y")
    axes.spines["left"].set_visible(False)
    axes.set_ylim(top, 0)
    axes.set_xlabel(_unit(measure, rows))
    is_long = max(map(abs, axes.get_xlim())) >= 10_000
    axes.locator_params(axis="x", nbins=3 if is_long else 5)
    axes.set_title(measure.title, loc="left")
    moved = sum(each.moved for each in rows)
    text = f"{measure.title}: differences of {len(labels)} arms; {moved} of {len(rows)} moved"
    return inline_svg(figure, name, f"{text}.")


def _unit(measure: Measure, rows: Sequence[Difference]) -> str:
    relative = {each.relative for each in rows}
    unit = "points" if measure.is_share else measure.unit or "count"
    name = "change in %" if relative == {True} else f"change in {unit}"
    if len(relative) > 1:
        name = f"change in % (from 0: in {unit})"
    return {"higher": f"{name}; right is better", "lower": f"{name}; left is better"}.get(
        measure.better or "", name
    )
