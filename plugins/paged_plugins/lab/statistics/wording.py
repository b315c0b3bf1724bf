"""Differences, values and arms as people read them."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from paged_plugins.lab.measures import MEASURES
from paged_plugins.lab.statistics.differences import Difference
from paged_plugins.lab.study.arms import Arm, settings_text

_MOST_DIGITS = 4


def change_text(difference: Difference) -> str:
    """Return the change with its unit: ``+2.1 points``, ``-3%``, ``+12 ms``."""
    return _signed(difference.change, _digits(difference)) + change_unit(difference)


def size_text(difference: Difference) -> str:
    """Return the size of the change, without sign and unit."""
    return f"{abs(difference.change):,.{_digits(difference)}f}"


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
    return f"{value:,.{digits}f} {unit}".rstrip()


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
    return f"{value:+,.{digits}f}" if value else "0"
