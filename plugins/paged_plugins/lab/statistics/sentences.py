"""The answer in words: for each axis which value is better and where, and a sentence per arm."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean

from paged_plugins.lab.measures.measure import MEASURES
from paged_plugins.lab.results.results import Results
from paged_plugins.lab.statistics.conclusions import conclusions
from paged_plugins.lab.statistics.differences import Difference
from paged_plugins.lab.statistics.simultaneous import minimum_seeds
from paged_plugins.lab.statistics.wording import change_text, interval_text, subject, value_text

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
