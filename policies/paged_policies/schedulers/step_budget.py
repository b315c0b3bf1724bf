"""What a step has left for further groups."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepBudget:
    """What running groups leave of a step; below 0 where they take too much."""

    num_seqs: int
    num_tokens: int
    num_blocks: int
    num_running: int
    """Groups that run, and go on running."""

    def __add__(self, freed: StepBudget) -> StepBudget:
        return StepBudget(
            self.num_seqs + freed.num_seqs,
            self.num_tokens + freed.num_tokens,
            self.num_blocks + freed.num_blocks,
            self.num_running + freed.num_running,
        )
