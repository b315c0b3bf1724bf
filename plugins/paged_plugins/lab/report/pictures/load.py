"""Latency against rate, where workloads differ in it; else throughput against latency."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from paged_plugins.lab.measures.measure import MEASURES
from paged_plugins.lab.report.contents import group_title
from paged_plugins.lab.report.families import Family
from paged_plugins.lab.report.pictures.legend import legend
from paged_plugins.lab.report.pictures.picture import Gallery, Picture, PictureGroup
from paged_plugins.lab.report.pictures.rates import RateSweep, rate_sweeps
from paged_plugins.lab.report.pictures.style import STYLES, WIDTH
from paged_plugins.lab.report.pictures.svg import inline_svg
from paged_plugins.lab.report.pictures.time_axis import milliseconds
from paged_plugins.lab.results.results import Results
from paged_plugins.lab.statistics.wording import value_text

_AGAINST_RATE = ("ttft_ms_p99", "tpot_ms_p50", "e2e_ms_p50", "goodput_per_s")
_AGAINST_THROUGHPUT = ("ttft_ms_p99", "tpot_ms_p50", "e2e_ms_p50")
_THROUGHPUT = "throughput_tokens_per_s"

Values = Mapping[tuple[str, str], Sequence[Mapping[str, float]]]
"""The measures of every seed, by arm and workload."""


def load(results: Results, families: Sequence[Family], most: int) -> Gallery:
    """Return pictures of what load does to latency, or of what latency throughput costs.

    Args:
        most: groups to draw.
    """
    values: dict[tuple[str, str], list[Mapping[str, float]]] = {}
    for run in results.runs:
        values.setdefault((run.arm, run.workload), []).append(run.measures)
    if sweeps := rate_sweeps(results):
        swept = list(product(sweeps, families))
        return Gallery(
            question="What does the rate of requests do to latency?",
            how_to_read="Mean over seeds; bars: the lowest and the highest seed.",
            groups=[
                _against_rate(f"rate-{place}", sweep, family, values)
                for place, (sweep, family) in enumerate(swept[:most])
            ],
            num_left_out=max(0, len(swept) - most),
        )
    places = list(product(results.workloads, families))
    return Gallery(
        question="What latency does throughput cost?",
        how_to_read="Large marks: means over seeds; small ones: seeds. Down and right is better.",
        groups=[
            PictureGroup(
                title=group_title(results, workload, family),
                legend=legend(f"load-{place}-legend", family.labels, lines=False),
                pictures=_against_throughput(f"load-{place}", workload, family, values),
            )
            for place, (workload, family) in enumerate(places[:most])
        ],
        num_left_out=max(0, len(places) - most),
    )


def _against_rate(name: str, sweep: RateSweep, family: Family, values: Values) -> PictureGroup:
    pictures = [
        _rate_picture(f"{name}-{kind}", kind, sweep, family, values) for kind in _AGAINST_RATE
    ]
    return PictureGroup(
        title=" · ".join(filter(None, (sweep.title, family.title))),
        legend=legend(f"{name}-legend", family.labels),
        pictures=[picture for picture in pictures if picture is not None],
    )


def _rate_picture(
    name: str, kind: str, sweep: RateSweep, family: Family, values: Values
) -> Picture | None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH / 72, 2.9))
    axes = figure.add_subplot()
    told = []
    for label, style in zip(family.labels, STYLES, strict=False):
        points = [
            (rate, found)
            for rate, workload in sweep.workloads
            if (found := _all(values, label, workload, kind))
        ]
        if points:
            means = [sum(found) / len(found) for _, found in points]
            below = [
                max(0.0, mean - min(found)) for mean, (_, found) in zip(means, points, strict=True)
            ]
            above = [
                max(0.0, max(found) - mean) for mean, (_, found) in zip(means, points, strict=True)
            ]
            axes.errorbar(
                [rate for rate, _ in points],
                means,
                yerr=[below, above],
                color=style.color,
                linestyle=style.dashes,
                marker=style.marker,
                elinewidth=0.8,
            )
            told.append(f"{label} {value_text(kind, means[0])} to {value_text(kind, means[-1])}")
    if not told:
        return None
    measure = MEASURES[kind]
    axes.set_title(measure.title, loc="left")
    _label(axes, kind)
    axes.set_xlabel("requests per second")
    text = f"{measure.title} against the rate: {'; '.join(told)}."
    return Picture(title=measure.title, description=text, svg=inline_svg(figure, name, text))


def _against_throughput(name: str, workload: str, family: Family, values: Values) -> list[Picture]:
    pictures = (
        _throughput_picture(f"{name}-{kind}", kind, workload, family, values)
        for kind in _AGAINST_THROUGHPUT
    )
    return [picture for picture in pictures if picture is not None]


def _throughput_picture(
    name: str, kind: str, workload: str, family: Family, values: Values
) -> Picture | None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH / 72, 2.9))
    axes = figure.add_subplot()
    told = []
    for label, style in zip(family.labels, STYLES, strict=False):
        runs = values.get((label, workload), ())
        points = [(run[_THROUGHPUT], run[kind]) for run in runs if {_THROUGHPUT, kind} <= {*run}]
        if points:
            xs, ys = zip(*points, strict=True)
            x, y = sum(xs) / len(xs), sum(ys) / len(ys)
            is_base = label == family.base.label  # above the others: it may be equal to one
            look: dict[str, Any] = {"color": style.color, "marker": style.marker}
            look |= {"linestyle": "none", "zorder": 4 if is_base else 3}
            if len(points) > 1:
                axes.plot(xs, ys, markersize=2.5, alpha=0.6, **look)
            axes.plot([x], [y], markersize=5 if is_base else 8.5, **look)
            told.append(f"{label} {value_text(kind, y)} at {value_text(_THROUGHPUT, x)}")
    if not told:
        return None
    measure = MEASURES[kind]
    axes.set_title(measure.title, loc="left")
    _label(axes, kind)
    axes.locator_params(axis="x", nbins=5)
    axes.set_xlabel(f"{MEASURES[_THROUGHPUT].title} in {MEASURES[_THROUGHPUT].unit}")
    text = f"{measure.title} against throughput: {'; '.join(told)}."
    return Picture(title=measure.title, description=text, svg=inline_svg(figure, name, text))


def _label(axes: Any, kind: str) -> None:
    if "_ms_" in kind:
        milliseconds(axes, "y")
    else:
        axes.set_ylabel(MEASURES[kind].unit)


def _all(values: Values, arm: str, workload: str, kind: str) -> list[float]:
    return [run[kind] for run in values.get((arm, workload), ()) if kind in run]
