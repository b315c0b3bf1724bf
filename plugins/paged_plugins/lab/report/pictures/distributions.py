"""How latencies are distributed over requests: cumulative, an arm per line."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from paged_plugins.lab.measures.service_level import ServiceLevel
from paged_plugins.lab.report.families import Family
from paged_plugins.lab.report.pictures.latencies import Latencies
from paged_plugins.lab.report.pictures.legend import legend
from paged_plugins.lab.report.pictures.picture import Picture, PictureGroup
from paged_plugins.lab.report.pictures.style import STYLES, WIDTH
from paged_plugins.lab.report.pictures.svg import inline_svg
from paged_plugins.lab.report.pictures.time_axis import milliseconds
from paged_plugins.lab.statistics.wording import value_text

QUESTION = "How are latencies distributed over requests?"
HOW_TO_READ = (
    "Height: the share of all requests, of all seeds, that took at most so long; further left is"
    " faster. A line that ends below 100% had requests that failed. Vertical line: the service"
    " level, where it is near."
)

_TITLES = {"ttft": "Time to first token", "tpot": "Time per output token", "e2e": "Completion"}
_POINTS = 81
_REACH = 2
"""A service level is drawn up to so many times the longest latency."""


def distributions(
    name: str, title: str, family: Family, found: Mapping[str, Latencies], slo: ServiceLevel
) -> PictureGroup:
    """Return the distributions of a family of arms.

    Args:
        name: prefix of ids.
        found: by label of the arm.
    """
    limits = {"ttft": slo.ttft_ms, "tpot": slo.tpot_ms, "e2e": slo.e2e_ms}
    pictures = [
        _picture(f"{name}-{kind}", kind, family, found, limit)
        for kind, limit in limits.items()
        if any(each.milliseconds[kind] for each in found.values())
    ]
    return PictureGroup(
        title=title, legend=legend(f"{name}-legend", family.labels), pictures=pictures
    )


def _picture(
    name: str, kind: str, family: Family, found: Mapping[str, Latencies], limit: float | None
) -> Picture:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH / 72, 2.9))
    axes = figure.add_subplot()
    told = []
    for label, style in zip(family.labels, STYLES, strict=False):
        values = found[label].milliseconds[kind]
        if not values:
            continue
        shares = np.linspace(0, 1, _POINTS)
        quantiles = np.quantile(values, shares)
        reached = 1.0 if kind == "tpot" else len(values) / found[label].num_requests
        axes.plot(
            quantiles,
            100 * shares * reached,
            color=style.color,
            linestyle=style.dashes,
            marker=style.marker,
            markevery=(8, 20),
            markersize=4.5,
        )
        told.append(f"{label} {value_text(f'{kind}_ms_p50', float(quantiles[_POINTS // 2]))}")
    if limit is not None and limit <= _REACH * axes.dataLim.x1:
        axes.axvline(limit, color=STYLES[0].color, linewidth=0.8)
    axes.set_ylim(0, 101)
    axes.set_ylabel("% of requests")
    axes.set_title(_TITLES[kind], loc="left")
    milliseconds(axes)
    text = f"{_TITLES[kind]}, cumulative over requests. Medians: {'; '.join(told)}."
    return Picture(title=_TITLES[kind], description=text, svg=inline_svg(figure, name, text))
