"""Pictures of latencies: over requests, against the rate, and against throughput."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any, TypeVar

import numpy as np

from paged_plugins.lab.measures import MEASURES, value_text
from paged_plugins.lab.report.contents import Family
from paged_plugins.lab.report.pictures.drawing import (
    STYLES,
    Gallery,
    PictureGroup,
    inline_svg,
    legend,
    milliseconds,
    new_axes,
)
from paged_plugins.lab.results.results import Results

_TITLES = {"ttft": "Time to first token", "tpot": "Time per output token", "e2e": "Completion"}
_POINTS = 81
_REACH = 2
"""A service level is drawn up to so many times the longest latency."""
_AGAINST_RATE = ("ttft_ms_p99", "tpot_ms_p50", "e2e_ms_p50", "goodput_per_s")
_AGAINST_THROUGHPUT = ("ttft_ms_p99", "tpot_ms_p50", "e2e_ms_p50")
_THROUGHPUT = "throughput_tokens_per_s"
What = TypeVar("What")

RateSweep = Sequence[tuple[float, str]]
"""One workload at several rates: requests per second and its name, ascending."""
Values = Mapping[tuple[str, str], Sequence[Mapping[str, float]]]
"""The measures of every seed, by arm and workload."""


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
        _named(results.workloads),
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
    """Return pictures of what load does to latency, where workloads differ in their rate; else of
    what latency throughput costs.

    Args:
        most: groups to draw.
    """
    values: dict[tuple[str, str], list[Mapping[str, float]]] = {}
    for run in results.runs:
        values.setdefault((run.arm, run.workload), []).append(run.measures)

    def against_rate(name: str, sweep: RateSweep, family: Family) -> Iterator[str | None]:
        for kind in _AGAINST_RATE:
            yield _against_rate(f"{name}-{kind}", kind, sweep, family, values)

    def against_throughput(name: str, workload: str, family: Family) -> Iterator[str | None]:
        for kind in _AGAINST_THROUGHPUT:
            yield _against_throughput(f"{name}-{kind}", kind, workload, family, values)

    if sweeps := rate_sweeps(results):
        return _gallery(
            "What does the rate of requests do to latency?",
            "Mean over seeds; bars: the lowest and the highest seed.",
            [(", ".join(name for _, name in sweep), sweep) for sweep in sweeps],
            families,
            against_rate,
            name="rate",
            most=most,
        )
    return _gallery(
        "What latency does throughput cost?",
        "Large marks: means over seeds; small ones: seeds. Down and right is better.",
        _named(results.workloads),
        families,
        against_throughput,
        name="load",
        most=most,
        lines=False,
    )


def _named(workloads: Sequence[str]) -> list[tuple[str, str]]:
    """Return workloads, each after its title: none if it is the only one."""
    return [(name if len(workloads) > 1 else "", name) for name in workloads]


def _gallery(
    question: str,
    how_to_read: str,
    drawn: Sequence[tuple[str, What]],
    families: Sequence[Family],
    draw: Callable[[str, What, Family], Iterator[str | None]],
    *,
    name: str,
    most: int,
    lines: bool = True,
) -> Gallery:
    """Return a group of pictures for what is drawn, each after its title, and each family."""
    places = list(product(drawn, families))
    groups = [
        PictureGroup(
            title=" · ".join(filter(None, (title, family.title))),
            legend=legend(f"{name}-{number}-legend", family.labels, lines=lines),
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
    name: str, kind: str, sweep: RateSweep, family: Family, values: Values
) -> str | None:
    figure, axes = new_axes(2.9)
    told = []
    for label, style in zip(family.labels, STYLES, strict=False):
        points = [
            (rate, np.array(found))
            for rate, workload in sweep
            if (found := [run[kind] for run in values.get((label, workload), ()) if kind in run])
        ]
        if points:
            means = [float(found.mean()) for _, found in points]
            ends = [
                (max(0.0, mean - found.min()), max(0.0, found.max() - mean))
                for mean, (_, found) in zip(means, points, strict=True)
            ]
            axes.errorbar(
                [rate for rate, _ in points],
                means,
                yerr=np.transpose(ends),
                color=style.color,
                linestyle=style.dashes,
                marker=style.marker,
                elinewidth=0.8,
            )
            told.append(f"{label} {value_text(kind, means[0])} to {value_text(kind, means[-1])}")
    return _against(figure, axes, name, kind, told, "the rate", "requests per second")


def _against_throughput(
    name: str, kind: str, workload: str, family: Family, values: Values
) -> str | None:
    figure, axes = new_axes(2.9)
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
    axes.locator_params(axis="x", nbins=5)
    unit = f"{MEASURES[_THROUGHPUT].title} in {MEASURES[_THROUGHPUT].unit}"
    return _against(figure, axes, name, kind, told, "throughput", unit)


def _against(
    figure: Any, axes: Any, name: str, kind: str, told: Sequence[str], what: str, unit: str
) -> str | None:
    """Return the picture of a measure against something; ``None``: nothing was drawn."""
    if not told:
        return None
    measure = MEASURES[kind]
    axes.set_title(measure.title, loc="left")
    axes.set_xlabel(unit)
    if "_ms_" in kind:
        milliseconds(axes, "y")
    else:
        axes.set_ylabel(measure.unit)
    return inline_svg(figure, name, f"{measure.title} against {what}: {'; '.join(told)}.")


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
