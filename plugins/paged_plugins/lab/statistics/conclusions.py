"""Which value of an axis is better, and where."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from paged_plugins.lab.measures import MEASURES, Measure
from paged_plugins.lab.results import Arm, Results, ServiceLevel
from paged_plugins.lab.statistics.differences import Difference, Pair, differences_of
from paged_plugins.lab.statistics.wording import (
    change_number,
    change_text,
    listed,
    setting_text,
    settings_text,
    value_text,
)

_HEADLINES = (
    *("goodput_per_s", "hit_rate", "e2e_ms_p50", "ttft_ms_p50", "ttft_ms_p99", "tpot_ms_p50"),
    *("throughput_tokens_per_s", "e2e_ms_p99", "preemptions", "recomputed_tokens", "evictions"),
)
"""Measures that an axis may be judged by; it is by the first ones that moved."""
_NUM_HEADLINES = 2
_MOST_IN_ORDER = 6


@dataclass(frozen=True, slots=True)
class _Place:
    """Arms that differ in one axis alone, on one workload."""

    name: str
    """Where this is, in words; empty if there is no other place."""
    reference: Arm
    arms: Sequence[Arm]
    """Without the reference."""
    workload: str


def conclusions(results: Results, found: Sequence[Difference], confidence: float) -> list[str]:
    """Return for every axis, and the measures that it is judged by, which of its values is better.

    Args:
        found: the differences of ``results``, of which each sentence gives those that moved.
    """
    axes = dict.fromkeys(arm.axis for arm in results.arms if arm.axis)
    return [text for axis in axes for text in _of_axis(axis, results, found, confidence)]


def _of_axis(
    axis: str, results: Results, found: Sequence[Difference], confidence: float
) -> Iterator[str]:
    places = _places(axis, results)
    labels = {arm.label for place in places for arm in place.arms}
    moved = {each.measure for each in found if each.moved and each.arm in labels}
    if not moved:
        yield f"{axis}: nothing moved"
    has_limits = results.slo != ServiceLevel()
    headlines = [
        name for name in _HEADLINES if name in moved and (has_limits or name != "goodput_per_s")
    ]
    for name in headlines[:_NUM_HEADLINES]:
        own = {(each.arm, each.workload): each for each in found if each.measure == name}
        yield from _against_reference(axis, MEASURES[name], places, own)
        yield from _in_order(axis, MEASURES[name], places, own, results, confidence)


def _places(axis: str, results: Results) -> list[_Place]:
    by_label = {arm.label: arm for arm in results.arms}
    arms: defaultdict[str, list[Arm]] = defaultdict(list)
    for arm in results.arms:
        if arm.axis == axis and arm.compared_with != arm.label:
            arms[arm.compared_with].append(arm)
    places = []
    for label, some in arms.items():
        around = {key: value for key, value in by_label[label].changes.items() if key != axis}
        where = f"at {settings_text(around)}" if around and len(arms) > 1 else ""
        for workload in results.workloads:
            on = f"on {workload}" if len(results.workloads) > 1 else ""
            name = " ".join(filter(None, (where, on)))
            places.append(_Place(name, by_label[label], some, workload))
    return places


def _against_reference(
    axis: str, measure: Measure, places: Sequence[_Place], own: Mapping[tuple[str, str], Difference]
) -> Iterator[str]:
    """One sentence for each other value of the axis."""
    by_value: defaultdict[tuple[str, str], dict[str, Difference]] = defaultdict(dict)
    for place in places:
        for arm in place.arms:
            if difference := own.get((arm.label, place.workload)):
                names = (_value(axis, arm), _value(axis, place.reference))
                by_value[names][place.name] = difference
    for (value, other), differences_at in by_value.items():
        better: list[str] = []
        worse: list[str] = []
        level: list[str] = []
        for where, each in differences_at.items():
            is_better = (each.change > 0) is (measure.better == "higher")
            (level if not each.moved else better if is_better else worse).append(where)
        parts = [
            f"{verb} {_range([differences_at[where] for where in some])}{_where(some)}"
            for verb, some in (("beats it by", better), ("loses to it by", worse))
            if some
        ]
        if level:
            parts.append(f"no clear difference{_where(level)}")
        yield f"{measure.title} of {axis}={value} against {other}: {', '.join(parts)}"


def _in_order(
    axis: str,
    measure: Measure,
    places: Sequence[_Place],
    own: Mapping[tuple[str, str], Difference],
    results: Results,
    confidence: float,
) -> Iterator[str]:
    """The order of three values and more, in each place where one of them moved."""
    orders = {}
    for place in places:
        means = _means(place, own)
        moved = any(
            each.moved for arm in place.arms if (each := own.get((arm.label, place.workload)))
        )
        if moved and len(means) > 2:
            best_first = sorted(means, key=means.__getitem__, reverse=measure.better == "higher")
            orders[place.name] = (place, means, best_first[:_MOST_IN_ORDER])
    pairs = [
        Pair(arm, following, place.workload, measure.name)
        for place, _, order in orders.values()
        for arm, following in pairwise(order)
    ]
    ahead = {
        (each.arm, each.workload)
        for each in differences_of(pairs, results, confidence)
        if each.moved
    }
    values = {arm.label: _value(axis, arm) for arm in results.arms}
    for name, (place, means, order) in orders.items():
        words = [f"{values[label]} {value_text(measure.name, means[label])}" for label in order]
        for number, before in enumerate(order[:-1], start=1):
            is_ahead = (before, place.workload) in ahead
            words[number] = f"{'ahead of' if is_ahead else 'about level with'} {words[number]}"
        yield f"{measure.title}{name and ' ' + name}: {', '.join(words)}"


def _means(place: _Place, own: Mapping[tuple[str, str], Difference]) -> dict[str, float]:
    """The mean of every arm by its label, as far as it is known."""
    means = {}
    for arm in place.arms:
        if difference := own.get((arm.label, place.workload)):
            means[place.reference.label] = difference.base
            means[arm.label] = difference.value
    return means


def _value(axis: str, arm: Arm) -> str:
    return setting_text(arm.changes[axis]) if axis in arm.changes else arm.label


def _range(some: Sequence[Difference]) -> str:
    """The least and the largest of several changes."""
    ends = [min(some, key=_size), max(some, key=_size)]
    if len({change_text(each) for each in ends}) == 1:
        return change_text(ends[0])
    return f"{change_number(ends[0])} to {change_text(ends[1])}"


def _size(difference: Difference) -> float:
    return abs(difference.change)


def _where(places: Sequence[str]) -> str:
    """The places in words; what they begin with in common is said once."""
    if not any(places):
        return ""
    heads = {place.partition("=")[0] for place in places}
    if len(heads) == 1 and len(places) > 1 and all(place.count("=") == 1 for place in places):
        first, *others = places
        return f" {listed([first, *(place.partition('=')[2] for place in others)])}"
    return f" {listed(list(places))}"
