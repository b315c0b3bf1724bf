"""Conclusions in words: for each axis which value is better and where, and a sentence per arm."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise, permutations
from statistics import fmean

from paged_plugins.lab.measures import MEASURES, Measure
from paged_plugins.lab.results.results import Results
from paged_plugins.lab.statistics.differences import Difference, Pair, differences_of, minimum_seeds
from paged_plugins.lab.statistics.wording import (
    change_text,
    change_unit,
    interval_text,
    listed,
    size_text,
    subject,
    value_text,
)
from paged_plugins.lab.study.arms import Arm, setting_text, settings_text

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


_MOST_CLAUSES = 8
"""Measures that a sentence gives with numbers; it names the others."""


def sentences(
    results: Results, differences: Sequence[Difference], confidence: float = 0.95
) -> list[str]:
    """Return what the differences say: :func:`answers`, then :func:`arm_sentences`.

    Args:
        differences: those of ``results``, as
            :func:`~paged_plugins.lab.statistics.differences.differences` returns them.
        confidence: that of the differences.
    """
    found = answers(results, differences, confidence)
    return [*found, *arm_sentences(results, differences, confidence)]


def answers(
    results: Results, differences: Sequence[Difference], confidence: float = 0.95
) -> list[str]:
    """Return what limits the differences, and the answer for each axis."""
    enough, num_seeds = minimum_seeds(confidence), len(results.seeds)
    limits = [*_failures(results), *_without_chance(results)]
    if num_seeds >= enough:
        return [*limits, *conclusions(results, differences, confidence)]
    seeds = f"{num_seeds} seeds are" if num_seeds > 1 else "one seed is"
    too_few = (
        f"{seeds} too few to claim a difference with {confidence:.0%} confidence; run {enough}"
    )
    return [too_few, *limits]


def arm_sentences(
    results: Results, differences: Sequence[Difference], confidence: float = 0.95
) -> list[str]:
    """Return what each arm moved on each workload; of too few seeds, which arms are unchanged."""
    if len(results.seeds) < minimum_seeds(confidence):
        changed = {each.arm for each in differences if each.base != each.value}
        differences = [each for each in differences if each.arm not in changed]
    return list(_arm_sentences(results, differences))


def _failures(results: Results) -> Iterator[str]:
    """Say where requests failed: arms that fail the same ones differ in nothing else."""
    for workload in results.workloads:
        counts: defaultdict[str, list[float]] = defaultdict(list)
        for run in results.runs:
            if run.workload == workload:
                counts[run.arm].append(run.measures.get("failed", 0.0))
        means = sorted(mean for each in counts.values() if (mean := fmean(each)))
        if means:
            texts = dict.fromkeys(value_text("failed", each) for each in (means[0], means[-1]))
            arms = "all" if len(means) == len(counts) else f"{len(means)} of {len(counts)}"
            told = (run.failure for run in results.runs if run.workload == workload)
            first = next(filter(None, told), "")
            yield (
                f"{workload}: {' to '.join(texts)} requests a run failed in {arms} arms"
                f"{first and ', the first: ' + first}"
            )


def _without_chance(results: Results) -> Iterator[str]:
    """Say where seeds change nothing, such as of a trace: then no interval bounds chance."""
    for workload in results.workloads:
        runs: defaultdict[str, list[Mapping[str, float]]] = defaultdict(list)
        for run in results.runs:
            if run.workload == workload:
                runs[run.arm].append(run.measures)
        if any(len(some) > 1 for some in runs.values()) and all(
            each == some[0] for some in runs.values() for each in some
        ):
            yield (
                f"{workload}: all seeds gave the same result, so what moved is true of exactly"
                " these requests, and no interval says how far it holds for others"
            )


def _arm_sentences(results: Results, differences: Sequence[Difference]) -> Iterator[str]:
    arms = {arm.label: arm for arm in results.arms}
    for arm in results.arms:
        own = [each for each in differences if each.arm == arm.label]
        if own:
            what = subject(arm, arms[arm.compared_with])
            if len(results.workloads) == 1 or not any(each.moved for each in own):
                yield f"{what}: {_moved(own)}"
                continue
            for workload in results.workloads:
                there = [each for each in own if each.workload == workload]
                yield f"{what} on {workload}: {_moved(there)}"


def _moved(own: Sequence[Difference]) -> str:
    """The measures that moved: the better ones, then the worse, then those that are neither."""
    moved = sorted((each for each in own if each.moved), key=lambda each: not _is_shown(each))
    if not moved:
        return "nothing moved"
    better, worse, neither = (
        [each for each in moved[:_MOST_CLAUSES] if is_better(each) is wanted]
        for wanted in (True, False, None)
    )
    text = ", but ".join(", ".join(map(_clause, some)) for some in (better, worse) if some)
    text = ", and ".join(filter(None, (text, ", ".join(map(_clause, neither)))))
    named = {
        kind: [_title(each) for each in moved[_MOST_CLAUSES:] if is_better(each) is wanted]
        for kind, wanted in (("better", True), ("worse", False), ("different", None))
    }
    parts = [text, *(f"also {kind}: {', '.join(some)}" for kind, some in named.items() if some)]
    if len(moved) < len(own):
        parts.append("nothing else moved")
    return "; ".join(parts)


def _clause(difference: Difference) -> str:
    return f"{_title(difference)} {change_text(difference)} {interval_text(difference)}"


def is_better(difference: Difference) -> bool | None:
    """Say whether a change is for the better; ``None``: it is neither better nor worse."""
    better = MEASURES[difference.measure].better
    if better is None or difference.change == 0:
        return None
    return (difference.change > 0) is (better == "higher")


def _is_shown(difference: Difference) -> bool:
    return MEASURES[difference.measure].shown


def _title(difference: Difference) -> str:
    return MEASURES[difference.measure].title
