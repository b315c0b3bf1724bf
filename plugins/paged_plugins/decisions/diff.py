"""The first difference of two traces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from paged_plugins.decisions.trace import differing_keys

Line = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Difference:
    """The first step in which two traces differ."""

    step: int
    keys: tuple[str, ...]
    """Keys that differ in it; empty: one trace has ended."""
    first: Line | None
    """The step as the first trace has it; ``None``: that trace has ended."""
    second: Line | None
    before: Line | None
    """The last step before it, equal in both."""


def first_difference(first: Sequence[Line], second: Sequence[Line]) -> Difference | None:
    """Return the first difference, or ``None`` if the traces are equal."""
    before: Line | None = None
    for ours, theirs in zip(first, second, strict=False):
        keys = differing_keys(ours, theirs)
        if keys:
            return Difference(int(ours["step"]), tuple(keys), ours, theirs, before)
        before = ours
    if len(first) == len(second):
        return None
    common = min(len(first), len(second))
    ours_next = first[common] if common < len(first) else None
    theirs_next = second[common] if common < len(second) else None
    goes_on = ours_next or theirs_next or {}
    return Difference(int(goes_on["step"]), (), ours_next, theirs_next, before)
