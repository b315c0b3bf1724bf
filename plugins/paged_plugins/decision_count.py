"""Counts of the decisions of a component, compared with those of another: here and inside vLLM."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field

_Count = Annotated[int, Field(ge=0, le=10**18)]


@dataclass(slots=True)
class DecisionCount:
    """Decisions of one component."""

    decisions: _Count = 0
    choices: _Count = 0
    """Decisions among more than one."""
    compared: _Count = 0
    """Decisions among more than one that another component was asked about, too."""
    differed: _Count = 0
    """Decisions among these that it would have made otherwise."""
    effects: dict[str, float] = field(default_factory=dict)
    """Sums of what these did beyond what it would have done, by unit; empty: that has no unit."""

    def decided(self, had_choice: bool, differed: bool | None) -> None:
        """Count a decision; ``None``: no other component was asked."""
        self.decisions += 1
        self.choices += had_choice
        if had_choice and differed is not None:
            self.compared += 1
            self.differed += differed

    def did(self, own: Mapping[str, float], other: Mapping[str, float]) -> None:
        """Count what a decision did, and what that of the other component would have done."""
        for unit in {**own, **other}:
            beyond = own.get(unit, 0.0) - other.get(unit, 0.0)
            self.effects[unit] = self.effects.get(unit, 0.0) + beyond

    def __add__(self, other: DecisionCount) -> DecisionCount:
        """Return the counts of both."""
        both = DecisionCount(
            self.decisions + other.decisions,
            self.choices + other.choices,
            self.compared + other.compared,
            self.differed + other.differed,
        )
        both.did(self.effects, {})
        both.did(other.effects, {})
        return both
