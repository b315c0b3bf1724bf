"""Which value of an axis is better, and where."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise, permutations

from paged_plugins.lab.measures.measure import MEASURES, Measure
from paged_plugins.lab.results.results import Results
from paged_plugins.lab.statistics.differences import Difference, Pair, differences_of
from paged_plugins.lab.statistics.wording import change_unit, listed, size_text, value_text
from paged_plugins.lab.study.arm import Arm
from paged_plugins.lab.study.setting_text import setting_text, settings_text

_HEADLINES = (
    *("goodput_per_s", "missed_deadlines", "hit_rate", "e2e_ms_p50", "ttft_ms_p50", "ttft_ms_p99"),
    "tpot_ms_p50",
    *("throughput_tokens_per_s", "e2e_ms_p99", "preemptions", "recomputed_tokens", "evictions"),
)
"""Measures that an axis may be judged by; it is by the first ones that moved, and where none of
these did, by others."""
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
    headlines = [name for name in _HEADLINES if name in moved] or [
        name for name in MEASURES if name in moved and MEASURES[name].better is not None
    ]
    for number, name in enumerate(headlines[:_NUM_HEADLINES]):
        own = {(each.arm, each.workload): each for each in found if each.measure == name}
        by_value = _by_value(axis, places, own)
        for (value, other), at in by_value.items():
            if number == 0 or any(each.moved for each in at.values()):
                yield _against_reference(axis, MEASURES[name], value, other, at)
        orders = [order for place in places if (order := _order(axis, MEASURES[name], place, own))]
        ahead = _ahead(orders, MEASURES[name], results, found, confidence)
        yield from filter(None, (order.text(ahead) for order in orders))


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


def _by_value(
    axis: str, places: Sequence[_Place], own: Mapping[tuple[str, str], Difference]
) -> dict[tuple[str, str], dict[str, Difference]]:
    """The differences by place, by value of the axis and that of the reference."""
    found: defaultdict[tuple[str, str], dict[str, Difference]] = defaultdict(dict)
    for place in places:
        for arm in place.arms:
            if difference := own.get((arm.label, place.workload)):
                names = (_value(axis, arm), _value(axis, place.reference))
                found[names][place.name] = difference
    return found


def _against_reference(
    axis: str, measure: Measure, value: str, other: str, at: Mapping[str, Difference]
) -> str:
    """Say where a value is better than the reference's, where worse, and where it is neither."""
    better: list[str] = []
    worse: list[str] = []
    level: list[str] = []
    equal: list[str] = []
    for where, each in at.items():
        is_better = (each.change > 0) is (measure.better == "higher")
        not_moved = equal if each.low == each.high == 0 else level
        (not_moved if not each.moved else better if is_better else worse).append(where)
    parts = [
        f"{verb} {_range([at[where] for where in some])}{_where(some)}"
        for verb, some in ((f"beats {other} by", better), (f"loses to {other} by", worse))
        if some
    ]
    if level:
        parts.append(f"does not clearly differ from {other}{_where(level)}")
    if equal:
        parts.append(f"equals {other}{_where(equal)}")
    return f"{axis}, {measure.title}: {value} {'; '.join(parts)}"


@dataclass(frozen=True, slots=True)
class _Order:
    """The values of an axis in one place, the best mean first."""

    start: str
    place: _Place
    labels: Sequence[str]
    words: Sequence[str]

    def pairs(self, measure: str) -> list[Pair]:
        """Each arm but the last, compared with the next."""
        return [
            Pair(arm, following, self.place.workload, measure)
            for arm, following in pairwise(self.labels)
        ]

    def text(self, ahead: Collection[tuple[str, str, str]]) -> str:
        """Return the order in words; nothing if no arm can be claimed to be ahead of the next, or
        if the order says more than can be claimed.
        """
        is_ahead = [
            (arm, following, self.place.workload) in ahead
            for arm, following in pairwise(self.labels)
        ]
        if not any(is_ahead) or self._overstates(is_ahead, ahead):
            return ""
        relations = ("ahead of" if each else "about level with" for each in is_ahead)
        steps = (f", {how} {what}" for how, what in zip(relations, self.words[1:], strict=True))
        return f"{self.start}: {self.words[0]}{''.join(steps)}"

    def _overstates(
        self, is_ahead: Sequence[bool], ahead: Collection[tuple[str, str, str]]
    ) -> bool:
        """Say whether the order would put an arm ahead of the reference, or behind it, that does
        not differ from it: of arms that are level with their neighbours, the ends need not be.
        """
        reference = self.place.reference.label
        return any(
            reference in pair
            and any(is_ahead[first:last])
            and (*pair, self.place.workload) not in ahead
            for (first, one), (last, other) in combinations(enumerate(self.labels), 2)
            for pair in [(one, other)]
        )


def _order(
    axis: str, measure: Measure, place: _Place, own: Mapping[tuple[str, str], Difference]
) -> _Order | None:
    """Return the order of three values and more; ``None`` where there are fewer."""
    means: dict[str, float] = {}
    for arm in place.arms:
        if difference := own.get((arm.label, place.workload)):
            means[place.reference.label] = difference.base
            means[arm.label] = difference.value
    if len(means) < 3:
        return None
    best_first = sorted(means, key=means.__getitem__, reverse=measure.better == "higher")
    labels = best_first[:_MOST_IN_ORDER]
    values = {arm.label: _value(axis, arm) for arm in (place.reference, *place.arms)}
    words = [f"{values[label]} {value_text(measure.name, means[label])}" for label in labels]
    start = f"{axis}, {measure.title}{place.name and ' ' + place.name}"
    return _Order(start, place, labels, words)


def _ahead(
    orders: Sequence[_Order],
    measure: Measure,
    results: Results,
    found: Sequence[Difference],
    confidence: float,
) -> set[tuple[str, str, str]]:
    """Return which arms can be claimed to differ from which others on which workload.

    Differences to a reference are those that were ``found``; the others are judged together with
    all of them, so that one cannot contradict the other.
    """
    compared = {(each.arm, each.compared_with) for each in found}
    pairs = [
        pair
        for order in orders
        for pair in order.pairs(measure.name)
        if not {(pair.arm, pair.base), (pair.base, pair.arm)} & compared
    ]
    judged_before = [
        Pair(each.arm, each.compared_with, each.workload, each.measure) for each in found
    ]
    judged = differences_of([*pairs, *judged_before], results, confidence) if pairs else []
    own = {(pair.arm, pair.base) for pair in pairs}
    claimed = [each for each in judged if each.moved and (each.arm, each.compared_with) in own]
    claimed += [each for each in found if each.moved]
    return {
        (arm, other, each.workload)
        for each in claimed
        if each.measure == measure.name
        for arm, other in permutations((each.arm, each.compared_with))
    }


def _value(axis: str, arm: Arm) -> str:
    values = {**arm.held, **arm.changes}
    return setting_text(values[axis]) if axis in values else arm.label


def _range(some: Sequence[Difference]) -> str:
    """The least and the largest size of several changes, with their unit."""
    ends = (min(some, key=_size), max(some, key=_size))
    least, largest = (size_text(each) + change_unit(each) for each in ends)
    return largest if least == largest else f"{size_text(ends[0])} to {largest}"


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
