"""Pictures of latencies: over requests, against the rate, and against throughput."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from paged_plugins.lab.measures import MEASURES
from paged_plugins.lab.report.contents import Family, group_title
from paged_plugins.lab.report.pictures.drawing import (
    STYLES,
    Gallery,
    Picture,
    PictureGroup,
    legend,
    milliseconds,
    new_axes,
    picture,
)
from paged_plugins.lab.results.results import Results
from paged_plugins.lab.statistics.phrases import value_text

_TITLES = {"ttft": "Time to first token", "tpot": "Time per output token", "e2e": "Completion"}
_POINTS = 81
_REACH = 2
"""A service level is drawn up to so many times the longest latency."""
_AGAINST_RATE = ("ttft_ms_p99", "tpot_ms_p50", "e2e_ms_p50", "goodput_per_s")
_AGAINST_THROUGHPUT = ("ttft_ms_p99", "tpot_ms_p50", "e2e_ms_p50")
_THROUGHPUT = "throughput_tokens_per_s"

Values = Mapping[tuple[str, str], Sequence[Mapping[str, float]]]
"""The measures of every seed, by arm and workload."""


# ---------------------------------------------------------------------- over requests


@dataclass(frozen=True, slots=True, kw_only=True)
class _Latencies:
    """The latencies of the requests of all seeds of an arm on a workload."""

    num_requests: int
    """Those that failed are among them."""
    milliseconds: Mapping[str, Sequence[float]]
    """By ``ttft``, ``tpot`` and ``e2e``: of the requests that have it."""


def distributions(results: Results, families: Sequence[Family], most: int) -> Gallery:
    """Return pictures of how latencies are distributed: cumulative, an arm per line.

    Args:
        most: groups to draw.
    """
    slo = results.slo
    limits = {"ttft": slo.ttft_ms, "tpot": slo.tpot_ms, "e2e": slo.e2e_ms}
    places = list(product(results.workloads, families))
    groups = []
    for place, (workload, family) in enumerate(places[:most]):
        found = {label: _latencies(results, label, workload) for label in family.labels}
        groups.append(
            PictureGroup(
                title=group_title(results, workload, family),
                legend=legend(f"spread-{place}-legend", family.labels),
                pictures=[
                    _distribution(f"spread-{place}-{kind}", kind, family, found, limit)
                    for kind, limit in limits.items()
                    if any(each.milliseconds[kind] for each in found.values())
                ],
            )
        )
    return Gallery(
        question="How are latencies distributed over requests?",
        how_to_read=(
            "Height: the share of all requests, of all seeds, that took at most so long; further "
            "left is faster. A line that ends below 100% had requests that failed. Vertical line: "
            "the service level, where it is near."
        ),
        groups=groups,
        num_left_out=len(places) - len(groups),
    )


def _latencies(results: Results, arm: str, workload: str) -> _Latencies:
    """Read them from the records that were kept."""
    times: dict[str, list[float]] = {"ttft": [], "tpot": [], "e2e": []}
    num_requests = 0
    for seed in results.seeds:
        record = results.record(arm, workload, seed)
        for request in record.requests if record is not None else ():
            num_requests += 1
            if request.is_served and request.first_token is not None:
                times["ttft"].append(1e3 * (request.first_token - request.arrival))
                times["e2e"].append(1e3 * (request.finished - request.arrival))
                if (per_token := request.time_per_token) is not None:
                    times["tpot"].append(1e3 * per_token)
    return _Latencies(num_requests=num_requests, milliseconds=times)


def _distribution(
    name: str, kind: str, family: Family, found: Mapping[str, _Latencies], limit: float | None
) -> Picture:
    figure, axes = new_axes(2.9)
    told = []
    for label, style in zip(family.labels, STYLES, strict=False):
        values = found[label].milliseconds[kind]
        if not values:
            continue
        shares = np.linspace(0, 1, _POINTS)
        quantiles = np.quantile(values, shares)
        reached = 1.0 if kind == "tpot" else len(values) / found[label].num_requests
        axes.plot(
            *(quantiles, 100 * shares * reached),
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
    return picture(figure, name, _TITLES[kind], text)


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
    if sweeps := rate_sweeps(results):
        swept = list(product(sweeps, families))
        return Gallery(
            question="What does the rate of requests do to latency?",
            how_to_read="Mean over seeds; bars: the lowest and the highest seed.",
            groups=[
                PictureGroup(
                    title=" · ".join(filter(None, (sweep.title, family.title))),
                    legend=legend(f"rate-{place}-legend", family.labels),
                    pictures=_drawn(
                        _against_rate(f"rate-{place}-{kind}", kind, sweep, family, values)
                        for kind in _AGAINST_RATE
                    ),
                )
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
                pictures=_drawn(
                    _against_throughput(f"load-{place}-{kind}", kind, workload, family, values)
                    for kind in _AGAINST_THROUGHPUT
                ),
            )
            for place, (workload, family) in enumerate(places[:most])
        ],
        num_left_out=max(0, len(places) - most),
    )


def _drawn(pictures: Iterable[Picture | None]) -> list[Picture]:
    return [each for each in pictures if each is not None]


def _against_rate(
    name: str, kind: str, sweep: RateSweep, family: Family, values: Values
) -> Picture | None:
    figure, axes = new_axes(2.9)
    told = []
    for label, style in zip(family.labels, STYLES, strict=False):
        points = [
            (rate, np.array(found))
            for rate, workload in sweep.workloads
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
) -> Picture | None:
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
) -> Picture | None:
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
    return picture(
        figure, name, measure.title, f"{measure.title} against {what}: {'; '.join(told)}."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RateSweep:
    """One workload at several rates."""

    title: str
    workloads: Sequence[tuple[float, str]]
    """Requests per second and the name of the workload, ascending."""


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
    return [
        RateSweep(title=", ".join(name for _, name in sorted(group)), workloads=sorted(group))
        for group in groups.values()
        if len({rate for rate, _ in group}) > 1
    ]


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
