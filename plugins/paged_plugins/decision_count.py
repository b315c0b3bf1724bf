"""Counts of the decisions of a component, compared with those of another: here and inside vLLM."""

from __future__ import annotations

from dataclasses import dataclass
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

    def decided(self, had_choice: bool, differed: bool | None) -> None:
        """Count a decision; ``None``: no other component was asked."""
        self.decisions += 1
        self.choices += had_choice
        if had_choice and differed is not None:
            self.compared += 1
            self.differed += differed
