"""The pictures of a report, in the order of the questions that they answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, cycle, groupby, product
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from paged_plugins.lab.measures import MEASURES, Measure, value_text
from paged_plugins.lab.report.contents import Contents, Family, Found, group_title
from paged_plugins.lab.report.drawing import (
    BLUE,
    INK,
    PAPER,
    STYLES,
    VERMILLION,
    Gallery,
    PictureGroup,
    drawing,
    inline_svg,
    legend,
    milliseconds,
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
        _picture(f"forest-{place}", measure, rows, markers, results)
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
    name: str,
    measure: Measure,
    rows: Sequence[Difference],
    markers: Mapping[str, str],
    results: Results,
) -> str:
    labels: dict[str, list[float]] = {}
    top = 0.0
    for arm, group in groupby(rows, key=lambda each: each.arm):
        own = list(group)
        number = len(own)
        arm = max((results.marked(arm, each.workload) for each in own), key=len)
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


_TITLES = {"ttft": "Time to first token", "tpot": "Time per output token", "e2e": "Completion"}
_POINTS = 81
_REACH = 2
"""A service level is drawn up to so many times the longest latency."""
_AGAINST_RATE = ("ttft_ms_p99", "tpot_ms_p50", "e2e_ms_p50", "goodput_per_s")
What = TypeVar("What")

RateSweep = Sequence[tuple[float, str]]
"""One workload at several rates: requests per second and its name, ascending."""


# ---------------------------------------------------------------------- over requests


def distributions(results: Results, families: Sequence[Family], most: int) -> Gallery:
    """Return pictures of how latencies are distributed: cumulative, an arm per line.

    Args:
        most: groups to draw.
    """

    def draw(name: str, workload: str, family: Family) -> Iterator[str | None]:
        found = {label: _latencies(results, label, workload) for label in family.labels}
        for kind in _TITLES:
            if any(times[kind] for _, times in found.values()):
                limit = results.slo.limits.get(kind)
                yield _distribution(f"{name}-{kind}", kind, found, limit)

    return _gallery(
        "How are latencies distributed over requests?",
        "Height: the share of all requests, of all seeds, that took at most so long; further "
        "left is faster. A line that ends below 100% had requests that failed. Vertical line: "
        "the service level, where it is near.",
        [(group_title(results, name), name) for name in results.workloads],
        families,
        draw,
        name="spread",
        most=most,
    )


def _latencies(results: Results, arm: str, workload: str) -> tuple[int, dict[str, list[float]]]:
    """Return how many requests all seeds have, those that failed among them, and the milliseconds
    of those that have it, by ``ttft``, ``tpot`` and ``e2e``, from the records that were kept.
    """
    records = (results.record(arm, workload, seed) for seed in results.seeds)
    requests = [each for record in records if record is not None for each in record.requests]
    times: dict[str, list[float]] = {kind: [] for kind in _TITLES}
    for request in requests:
        if request.is_served and request.first_token is not None:
            times["ttft"].append(1e3 * (request.first_token - request.arrival))
            times["e2e"].append(1e3 * (request.finished - request.arrival))
            if (per_token := request.time_per_token) is not None:
                times["tpot"].append(1e3 * per_token)
    return len(requests), times


def _distribution(
    name: str,
    kind: str,
    found: Mapping[str, tuple[int, Mapping[str, Sequence[float]]]],
    limit: float | None,
) -> str:
    figure, axes = new_axes(2.9)
    told = []
    for (label, (num_requests, times)), style in zip(found.items(), STYLES, strict=False):
        values = times[kind]
        if not values:
            continue
        quantiles = np.quantile(values, np.linspace(0, 1, _POINTS))
        reached = 1.0 if kind == "tpot" else len(values) / num_requests
        axes.plot(
            *(quantiles, 100 * np.linspace(0, 1, _POINTS) * reached),
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
    return inline_svg(figure, name, text)


# ---------------------------------------------------------------------- load


def load(results: Results, families: Sequence[Family], most: int) -> Gallery:
    """Return pictures of what load does to latency, where workloads differ in their rate.

    Args:
        most: groups to draw.
    """

    def against_rate(name: str, sweep: RateSweep, family: Family) -> Iterator[str | None]:
        for kind in _AGAINST_RATE:
            yield _against_rate(f"{name}-{kind}", kind, sweep, family, results)

    return _gallery(
        "What does the rate of requests do to latency?",
        "Mean over seeds; bars: the lowest and the highest seed. Crossed: over what can be served.",
        [(", ".join(name for _, name in sweep), sweep) for sweep in rate_sweeps(results)],
        families,
        against_rate,
        name="rate",
        most=most,
    )


def _gallery(
    question: str,
    how_to_read: str,
    drawn: Sequence[tuple[str, What]],
    families: Sequence[Family],
    draw: Callable[[str, What, Family], Iterator[str | None]],
    *,
    name: str,
    most: int,
) -> Gallery:
    """Return a group of pictures for what is drawn, each after its title, and each family."""
    places = list(product(drawn, families))
    groups = [
        PictureGroup(
            title=" · ".join(filter(None, (title, family.title))),
            legend=legend(f"{name}-{number}-legend", family.labels),
            pictures=list(filter(None, draw(f"{name}-{number}", what, family))),
        )
        for number, ((title, what), family) in enumerate(places[:most])
    ]
    return Gallery(
        question=question,
        how_to_read=how_to_read,
        groups=groups,
        num_left_out=len(places) - len(groups),
    )


def _against_rate(
    name: str,
    kind: str,
    sweep: RateSweep,
    family: Family,
    results: Results,
) -> str | None:
    """Return the picture of a measure against the rate; ``None``: nothing was drawn."""
    figure, axes = new_axes(2.9)
    told = []
    for label, style in zip(family.labels, STYLES, strict=False):
        points = [
            (rate, np.array(found), results.is_over(label, workload))
            for rate, workload in sweep
            if (found := results.values(label, workload, kind))
        ]
        if points:
            means = [float(found.mean()) for _, found, _ in points]
            ends = [
                (max(0.0, mean - found.min()), max(0.0, found.max() - mean))
                for mean, (_, found, _) in zip(means, points, strict=True)
            ]
            axes.errorbar(
                [rate for rate, _, _ in points],
                means,
                yerr=np.transpose(ends),
                color=style.color,
                linestyle=style.dashes,
                marker=style.marker,
                elinewidth=0.8,
            )
            for mean, (rate, _, is_crossed) in zip(means, points, strict=True):
                if is_crossed:
                    axes.plot(rate, mean, marker="x", markersize=11, color=style.color)
            told.append(f"{label} {value_text(kind, means[0])} to {value_text(kind, means[-1])}")
    if not told:
        return None
    measure = MEASURES[kind]
    axes.set_title(measure.title, loc="left")
    axes.set_xlabel("requests per second")
    if "_ms_" in kind:
        milliseconds(axes, "y")
    else:
        axes.set_ylabel(measure.unit)
    return inline_svg(figure, name, f"{measure.title} against the rate: {'; '.join(told)}.")


def rate_sweeps(results: Results) -> list[RateSweep]:
    """Return the workloads of the manifest that are equal but for their names and rates."""
    specs = results.manifest.get("workloads")
    groups: dict[str, list[tuple[float, str]]] = {}
    for spec in specs if isinstance(specs, Sequence) else ():
        if isinstance(spec, Mapping) and spec.get("name") in results.workloads:
            rates: list[float] = []
            rest = _without_rate({key: spec[key] for key in spec if key != "name"}, rates)
            if len(rates) == 1:
                kind = json.dumps(rest, sort_keys=True, default=str)
                groups.setdefault(kind, []).append((rates[0], spec["name"]))
    return [sorted(group) for group in groups.values() if len({rate for rate, _ in group}) > 1]


def _without_rate(value: Any, rates: list[float]) -> Any:
    """Return what describes a workload without its ``rate``, which is added to ``rates``."""
    if not isinstance(value, Mapping):
        return value
    rest = {}
    for key, inner in value.items():
        if key == "rate" and isinstance(inner, int | float):
            rates.append(float(inner))
        else:
            rest[key] = _without_rate(inner, rates)
    return rest


_MOST_PICTURES = 15
"""Pictures of one question, at most: the file stays small."""
_MOST_GROUPS = _MOST_PICTURES // 3


def galleries(results: Results, contents: Contents) -> list[Gallery]:
    """Return the pictures that ``results`` have the data for, without arms that failed;
    SettingsError without matplotlib.
    """
    failures, record = results.failures, results.record
    results = replace(
        results,
        runs=[run for run in results.runs if run.arm not in failures],
        record=lambda *place: None if place[0] in failures else record(*place),
    )
    with drawing():
        made = [
            forest(results, contents.found, _MOST_PICTURES),
            load(results, contents.families, _MOST_GROUPS),
            distributions(results, contents.families, _MOST_GROUPS),
        ]
    return [gallery for gallery in made if gallery]
