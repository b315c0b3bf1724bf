"""Conclusions in words: for each axis which value is better and where, and a sentence per arm."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, pairwise, permutations
from statistics import fmean

from paged_plugins.lab.measures import MEASURES, Measure
from paged_plugins.lab.results.results import Results, RunResult
from paged_plugins.lab.statistics.differences import (
    Difference,
    Pair,
    differences,
    differences_of,
    minimum_seeds,
)
from paged_plugins.lab.statistics.phrases import (
    Phrase,
    change_text,
    change_unit,
    interval_text,
    listed,
    size_text,
    subject,
    value_text,
)
from paged_plugins.lab.study.arms import Arm, setting_text, settings_text

_MOST_CLAUSES = 8
"""Measures that a sentence gives with numbers; it names the others."""
_HEADLINES = (
    *("goodput_per_s", "missed_deadlines", "hit_rate", "e2e_ms_p50", "ttft_ms_p50", "ttft_ms_p99"),
    "tpot_ms_p50",
    *("throughput_tokens_per_s", "e2e_ms_p99", "preemptions", "recomputed_tokens", "evictions"),
)
"""Measures that an axis may be judged by; it is by the first ones that moved, and where none of
these did, by others."""
_NUM_HEADLINES = 2
_MOST_IN_ORDER = 6


@dataclass(frozen=True)
class Conclusions:
    """The conclusions from results: differences, and what they say."""

    results: Results
    differences: Sequence[Difference]
    confidence: float

    @classmethod
    def of(
        cls, results: Results, measures: Collection[str] | None = None, confidence: float = 0.95
    ) -> Conclusions:
        """Return the conclusions in some measures; the fewer, the narrower the intervals.

        Args:
            measures: names of those to compare; ``None``: all.
        """
        return cls(results, differences(results, confidence, measures=measures), confidence)

    def with_named_base(self) -> Conclusions:
        """Return them with the base called by its settings; see :class:`Results`."""
        base, name = self.results.arms[0].label, self.results.arms[0].title
        named = [
            replace(
                each,
                arm=name if each.arm == base else each.arm,
                compared_with=name if each.compared_with == base else each.compared_with,
            )
            for each in self.differences
        ]
        return replace(self, results=self.results.with_named_base(), differences=named)

    @property
    def sentences(self) -> list[str]:
        """Say all: :attr:`answers`, then :attr:`arms`."""
        return [*self.answers, *self.arms]

    @cached_property
    def answers(self) -> list[str]:
        """Say what limits the differences, and the answer for each axis."""
        enough, num_seeds = minimum_seeds(self.confidence), len(self.results.seeds)
        limits = [
            *_failed_arms(self.results),
            *_refusals(self.results),
            *_without_chance(self.results),
        ]
        if num_seeds >= enough:
            axes = dict.fromkeys(arm.axis for arm in self.results.arms if arm.axis)
            return [*limits, *(text for axis in axes for text in _of_axis(axis, self))]
        seeds = Phrase.SEEDS if num_seeds > 1 else Phrase.ONE_SEED
        too_few = Phrase.TOO_FEW_SEEDS.format(
            seeds=seeds.format(num_seeds=num_seeds), confidence=self.confidence, enough=enough
        )
        return [too_few, *limits]

    @cached_property
    def arms(self) -> list[str]:
        """Say what each arm moved on each workload; of too few seeds, which are unchanged."""
        found = self.differences
        if len(self.results.seeds) < minimum_seeds(self.confidence):
            changed = {each.arm for each in found if each.base != each.value}
            found = [each for each in found if each.arm not in changed]
        return list(_arm_sentences(self.results, found))


def _failed_arms(results: Results) -> Iterator[str]:
    """Say which arms failed, and why."""
    compared_with = {arm.compared_with for arm in results.arms if arm.compared_with != arm.label}
    for label, failure in results.failures.items():
        others = Phrase.COMPARED_WITH_IT if label in compared_with else ""
        yield Phrase.ARM_FAILED.format(arm=label, others=others, why=failure)


def _refusals(results: Results) -> Iterator[str]:
    """Say where requests were refused or ignored: arms that refuse the same ones differ in nothing
    else.
    """
    for workload in results.workloads:
        runs = _by_arm(results, workload)
        counts = [fmean(map(_num_refused, some)) for some in runs.values()]
        means = sorted(filter(None, counts))
        if means:
            texts = dict.fromkeys(value_text("failed", each) for each in (means[0], means[-1]))
            told = (run.failure for run in results.runs if run.workload == workload)
            first = next(filter(None, told), "")
            yield Phrase.REFUSED.format(
                workload=workload,
                counts=" to ".join(texts),
                arms="all" if len(means) == len(counts) else f"{len(means)} of {len(counts)}",
            ) + (first and Phrase.FIRST_REFUSAL.format(reason=first))


def _num_refused(run: RunResult) -> float:
    return run.measures.get("failed", 0.0) - run.num_errors


def _without_chance(results: Results) -> Iterator[str]:
    """Say where seeds change nothing, such as of a trace: then no interval bounds chance."""
    for workload in results.workloads:
        runs = _by_arm(results, workload).values()
        if any(len(some) > 1 for some in runs) and all(
            each.measures == some[0].measures for some in runs for each in some
        ):
            yield Phrase.NO_CHANCE.format(workload=workload)


def _by_arm(results: Results, workload: str) -> Mapping[str, Sequence[RunResult]]:
    """Return the runs of a workload by arm, of those that did not fail."""
    return {
        arm: runs
        for (arm, name), runs in results.runs_of.items()
        if name == workload and arm not in results.failures
    }


def _arm_sentences(results: Results, found: Sequence[Difference]) -> Iterator[str]:
    arms = {arm.label: arm for arm in results.arms}
    for arm in results.arms:
        own = [each for each in found if each.arm == arm.label]
        if own:
            what = subject(arm, arms[arm.compared_with])
            if len(results.workloads) == 1 or not any(each.moved for each in own):
                yield Phrase.ARM.format(arm=what, moved=_moved(own))
                continue
            for workload in results.workloads:
                moved = _moved([each for each in own if each.workload == workload])
                yield Phrase.ARM_ON.format(arm=what, workload=workload, moved=moved)


def _moved(own: Sequence[Difference]) -> str:
    """The measures that moved: the better ones, then the worse, then those that are neither."""
    moved = sorted(
        (each for each in own if each.moved), key=lambda each: not MEASURES[each.measure].shown
    )
    if not moved:
        is_one = len(own) == 1 and own[0].has_interval and not own[0].is_equal
        return f"{Phrase.UNMOVED} ({_clause(own[0])})" if is_one else Phrase.UNMOVED
    better, worse, neither = (
        ", ".join(map(_clause, (each for each in moved[:_MOST_CLAUSES] if each.is_better is way)))
        for way in (True, False, None)
    )
    text = ", but ".join(filter(None, (better, worse)))
    parts = [", and ".join(filter(None, (text, neither)))]
    for kind, way in (("better", True), ("worse", False), ("different", None)):
        titles = [_title(each) for each in moved[_MOST_CLAUSES:] if each.is_better is way]
        if titles:
            parts.append(Phrase.ALSO.format(kind=kind, measures=", ".join(titles)))
    if len(moved) < len(own):
        parts.append(Phrase.NOTHING_ELSE)
    return "; ".join(parts)


def _clause(difference: Difference) -> str:
    return f"{_title(difference)} {change_text(difference)} {interval_text(difference)}"


def _title(difference: Difference) -> str:
    return MEASURES[difference.measure].title


# ---------------------------------------------------------------------- the answer for each axis


@dataclass(frozen=True, slots=True)
class _Place:
    """Arms that differ in one axis alone, on one workload."""

    name: str
    """Where this is, in words; empty if there is no other place."""
    reference: Arm
    arms: Sequence[Arm]
    """Without the reference."""
    workload: str


def _of_axis(axis: str, given: Conclusions) -> Iterator[str]:
    """Say, for the measures that an axis is judged by, which of its values is better, and where."""
    found, places = given.differences, _places(axis, given.results)
    if not places:  # all of its arms failed
        return
    labels = {arm.label for place in places for arm in place.arms}
    moved = {each.measure for each in found if each.moved and each.arm in labels}
    failures = given.results.failures
    if not moved and not any(
        arm.axis == axis and arm.label in failures for arm in given.results.arms
    ):
        yield Phrase.AXIS_UNMOVED.format(axis=axis)
    headlines = [name for name in _HEADLINES if name in moved] or [
        name for name in MEASURES if name in moved and MEASURES[name].better is not None
    ]
    for number, name in enumerate(headlines[:_NUM_HEADLINES]):
        own = {(each.arm, each.workload): each for each in found if each.measure == name}
        by_value = _by_value(axis, places, own)
        for (value, other), at in by_value.items():
            if number == 0 or any(each.moved for each in at.values()):
                yield _against_reference(axis, MEASURES[name], value, other, at)
        orders = [(place, _order(axis, MEASURES[name], place, own)) for place in places]
        yield from _order_sentences(axis, MEASURES[name], orders, given)


def _places(axis: str, results: Results) -> list[_Place]:
    """Return where an axis is varied; without the arms that failed, or whose reference did."""
    by_label = {arm.label: arm for arm in results.arms}
    arms: defaultdict[str, list[Arm]] = defaultdict(list)
    for arm in results.arms:
        if results.failures.keys() & {arm.label, arm.compared_with}:
            continue
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
    where: defaultdict[Phrase, list[str]] = defaultdict(list)
    for place, each in at.items():
        phrase = Phrase.EQUAL if each.is_equal else Phrase.LEVEL
        if each.moved:
            phrase = Phrase.BEATS if each.is_better else Phrase.LOSES
        where[phrase].append(place)
    parts = [
        phrase.format(
            other=other,
            where=_where(where[phrase]),
            size=_range([at[place] for place in where[phrase]]),
        )
        for phrase in (Phrase.BEATS, Phrase.LOSES, Phrase.LEVEL, Phrase.EQUAL)
        if where[phrase]
    ]
    return Phrase.AXIS.format(axis=axis, measure=measure.title, value=value, parts="; ".join(parts))


_Order = Mapping[str, str]
"""The arms in one place, the best mean first: the value of the axis and the mean, by label."""


def _order(
    axis: str, measure: Measure, place: _Place, own: Mapping[tuple[str, str], Difference]
) -> _Order:
    means: dict[str, float] = {}
    for arm in place.arms:
        if difference := own.get((arm.label, place.workload)):
            means[place.reference.label] = difference.base
            means[arm.label] = difference.value
    best_first = sorted(means, key=means.__getitem__, reverse=measure.better == "higher")
    values = {arm.label: _value(axis, arm) for arm in (place.reference, *place.arms)}
    return {
        label: f"{values[label]} {value_text(measure.name, means[label])}"
        for label in best_first[:_MOST_IN_ORDER]
    }


def _order_sentences(
    axis: str, measure: Measure, orders: Sequence[tuple[_Place, _Order]], given: Conclusions
) -> Iterator[str]:
    """Say in which order three values and more are, where one can be claimed to be ahead of the
    next, and where the order says no more than can be claimed.

    Of arms that are level with their neighbours, the ends need not be: an order must not put an arm
    ahead of the reference, or behind it, that does not differ from it.
    """
    orders = [(place, order) for place, order in orders if len(order) > 2]
    ahead = _ahead(orders, measure, given)
    for place, order in orders:
        is_ahead = [(*pair, place.workload) in ahead for pair in pairwise(order)]
        overstates = any(
            place.reference.label in (one, other)
            and any(is_ahead[first:last])
            and (one, other, place.workload) not in ahead
            for (first, one), (last, other) in combinations(enumerate(order), 2)
        )
        if any(is_ahead) and not overstates:
            best, *others = order.values()
            steps = [
                (Phrase.AHEAD if each else Phrase.ABOUT_LEVEL).format(value=value)
                for each, value in zip(is_ahead, others, strict=True)
            ]
            yield Phrase.ORDER.format(
                axis=axis,
                measure=measure.title,
                place=place.name and f" {place.name}",
                steps=", ".join([best, *steps]),
            )


def _ahead(
    orders: Sequence[tuple[_Place, _Order]], measure: Measure, given: Conclusions
) -> set[tuple[str, str, str]]:
    """Return which arms can be claimed to differ from which others on which workload.

    Differences to a reference are those that were ``found``; the others are judged together with
    all of them, so that one cannot contradict the other.
    """
    found = given.differences
    compared = {(each.arm, each.compared_with) for each in found}
    pairs = [
        Pair(arm, following, place.workload, measure.name)
        for place, order in orders
        for arm, following in pairwise(order)
        if not {(arm, following), (following, arm)} & compared
    ]
    judged = []
    if pairs:
        judged = differences_of([*pairs, *found], given.results, given.confidence)
    own = {(pair.arm, pair.compared_with) for pair in pairs}
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
