"""Phrases: the table of all sentences about results, and how their parts are written."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from math import isfinite

from paged_plugins.lab.measures import MEASURES
from paged_plugins.lab.statistics.differences import Difference
from paged_plugins.lab.study.arms import Arm, settings_text


class Phrase(StrEnum):
    """What is said of results; ``format`` fills in the names and numbers."""

    # what limits conclusions
    ONE_SEED = "one seed is"
    SEEDS = "{num_seeds} seeds are"
    TOO_FEW_SEEDS = (
        "{seeds} too few to claim a difference with {confidence:.0%} confidence; run {enough}"
    )
    ARM_FAILED = "{arm} failed, so nothing is concluded about it{others}: {why}"
    COMPARED_WITH_IT = ", nor about what is compared with it"
    REFUSED = "{workload}: {counts} requests a run were refused or ignored in {arms} arms"
    FIRST_REFUSAL = ", the first: {reason}"
    NO_CHANCE = (
        "{workload}: all seeds gave the same result, so what moved is true of exactly these "
        "requests, and no interval says how far it holds for others"
    )

    RUN_FAILED = "failed: {why}; what follows is of the others, and no measure of these settings"
    RUN_REFUSED = "not served: {requests}, refused or ignored, the first: {reason}"
    OTHERS_MEASURED = "TTFT, TPOT, completion and queueing are those of the other requests"

    # the answer for each axis
    AXIS_UNMOVED = "{axis}: nothing moved"
    AXIS = "{axis}, {measure}: {value} {parts}"
    BEATS = "beats {other} by {size}{where}"
    LOSES = "loses to {other} by {size}{where}"
    LEVEL = "does not clearly differ from {other}{where}"
    EQUAL = "equals {other}{where}"
    ORDER = "{axis}, {measure}{place}: {steps}"
    AHEAD = "ahead of {value}"
    ABOUT_LEVEL = "about level with {value}"

    # what each arm moved
    ARM = "{arm}: {moved}"
    ARM_ON = "{arm} on {workload}: {moved}"
    UNMOVED = "nothing moved"
    NOTHING_ELSE = "nothing else moved"
    ALSO = "also {kind}: {measures}"

    # headings and scope
    COMPARED = (
        "{workload}: {num_runs} runs, {seeds}, differences with {confidence:.0%} intervals for all "
        "of them together; * moved"
    )
    EQUAL_IN_ALL = "equal in all arms: {measures}"
    EQUAL_IN_OTHERS = "equal in all arms that did not fail: {measures}"
    NOTHING_TO_COMPARE = "no measure that was asked for has a value in two arms"
    WHAT_CHANGES = "What does changing {axes} do{where}?"
    WHAT_DIFFERS = "What do {num_arms} arms differ in{where}?"
    NUM_MOVED = "{moved:,} of {total:,} differences moved"

    # how to read a report, and how far to trust it
    MISSING_RUNS = (
        "{runs} failed or were left out: a difference is of the seeds that both arms have."
    )
    SAME_REQUESTS = (
        "Every arm served the same requests with the same {seeds}. A difference is taken within "
        "each seed, then averaged."
    )
    SIMULATED = (
        "Times are those of a simulation: a step takes what cost model {model} ({options}) "
        "predicts. Intervals are of the draw of requests, not of the prediction."
    )
    NO_INTERVALS = "One seed bounds nothing: there are no intervals, and no claim is made."
    INTERVALS = (
        "[low, high] is the {percent:g}% confidence interval of a difference, by a bootstrap over "
        "seeds. It is corrected for the number of comparisons: with {percent:g}% confidence all "
        "{num_differences:,} intervals of this report hold at once."
    )
    NO_CLAIM = "A claim needs {enough} seeds: with {num_seeds}, nothing is said to have moved."
    CLAIM = (
        "A measure has moved if its interval leaves out 0; then it is called better or worse, and "
        "set in bold. One that has not moved need not be equal: the interval says how large a "
        "difference may have been missed."
    )

    LIMIT = "{measure} at most {limit:g} ms"
    NO_LIMITS = "none, so there is no goodput"

    # what a search found
    LEFT_OUT = "left out: {arm}: {problem}"
    NO_AXIS_MATTERED = "No axis mattered: all combinations have the same {measure}.\n"
    AXES = "Which axes mattered: share of the variance of {measure}"
    NOT_JUDGED = "{axis}: nothing is concluded about it, as arms with {values} failed"
    REST = "axes together, and chance: {percent:.0f}%\n"
    FINALISTS = "Finalists with {num_seeds} fresh seeds, by {measure}"
    NONE_BETTER = "With fresh seeds, nothing that was found is better than the base."
    NOT_TOLD_APART = "{arm} came first, but fresh seeds cannot tell it from the base: {changes}."
    BETTER = "With fresh seeds, {arm} is better than the base{where}: {changes}."
    IN_THE_MEAN = " in the mean over the workloads"


_MOST_DIGITS = 4
_LONG = 1e15


def change_text(difference: Difference) -> str:
    """Return the change with its unit: ``+2.1 points``, ``-3%``, ``+12 ms``."""
    return _signed(difference.change, _digits(difference)) + change_unit(difference)


def size_text(difference: Difference) -> str:
    """Return the size of the change, without sign and unit."""
    return _plain(abs(difference.change), _digits(difference))


def change_unit(difference: Difference) -> str:
    """Return the unit of the change, with the space before it where it has one."""
    measure = MEASURES[difference.measure]
    if difference.relative:
        return "%"
    unit = "points" if measure.is_share else measure.unit
    return f" {unit}" if unit else ""


def interval_text(difference: Difference) -> str:
    """Return the confidence interval: ``[+1.3, +2.9]``; of one seed ``[?, ?]``."""
    digits = _digits(difference)
    ends = (difference.low, difference.high)
    low, high = (_signed(end, digits) if isfinite(end) else "?" for end in ends)
    return f"[{low}, {high}]"


def value_text(measure: str, value: float) -> str:
    """Return a value of a measure with its unit: ``41.2%``, ``1,234 ms``, ``17``."""
    unit = MEASURES[measure].unit
    if unit == "share":
        return f"{100 * value:.1f}%"
    if not isfinite(value):
        return "-"
    digits = 0 if value == int(value) or abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{_plain(value, digits)} {unit}".rstrip()


def subject(arm: Arm, reference: Arm) -> str:
    """Return what an arm changes, and what it has in common with the arm it is compared with."""
    common = {
        key: value
        for key, value in arm.changes.items()
        if key in reference.changes and reference.changes[key] == value
    }
    own = {key: value for key, value in arm.changes.items() if key not in common}
    if not own:
        return arm.label
    where = f" at {settings_text(common)}" if common else ""
    return settings_text(own) + where


def listed(items: Sequence[str]) -> str:
    """Return ``a, b and c``."""
    return " and ".join(filter(None, (", ".join(items[:-1]), items[-1])))


def _digits(difference: Difference) -> int:
    """Decimals of the change and its interval: where it moved, enough to tell its ends from 0."""
    numbers = [
        abs(each)
        for each in (difference.change, difference.low, difference.high)
        if isfinite(each) and (difference.moved or each == difference.change)
    ]
    digits = 0 if max(numbers) >= 10 and difference.relative else 1
    while difference.moved and round(min(numbers), digits) == 0 and digits < _MOST_DIGITS:
        digits += 1
    return digits


def _signed(value: float, digits: int) -> str:
    """Return a number with its sign, ``-0.0`` if rounding alone makes it 0; ``0`` if it is."""
    return _plain(value, digits, "+") if value else "0"


def _plain(value: float, digits: int, sign: str = "") -> str:
    """Return a number with its thousands apart; one too long to be read by its exponent."""
    return f"{value:{sign},.{digits}f}" if abs(value) < _LONG else f"{value:{sign}.3g}"
