"""Slot ``cost_model``: how long a step takes."""

from __future__ import annotations

from abc import ABC, abstractmethod

from paged_core.engine.contexts import SlotContext
from paged_core.interfaces.step_work import StepWork

__all__ = ["CostModel", "CostModelContext", "StepWork"]

CostModelContext = SlotContext
"""Context that the factory of a cost model gets in addition to its options."""

IDLE_SECONDS = 0.005
"""An engine that does nothing for longer has been idle."""


def memory_of_cache(free: float, asked: int | float | None) -> float:
    """Return how many of the free bytes the cache takes.

    Args:
        asked: bytes, or a share; ``None``: all.
    """
    if isinstance(asked, float):
        return free * asked
    return free if asked is None else min(free, asked)


class CostModel(ABC):
    """Predicts the time of a step from the work in it alone: equal work takes equal time.

    More of any part of the work never takes less time. A cost model can be pickled.
    """

    @abstractmethod
    def seconds(self, work: StepWork, /) -> float:
        """Return the time from the plan of a step to its tokens, above 0."""

    def is_extrapolated(self, work: StepWork, /) -> bool:
        """Return whether the time of the work lies beyond what the cost model was made from."""
        return False

    def num_blocks(self, block_size: int, /) -> int | None:
        """Return the blocks that fit beside the model; ``None``: it does not know."""
        return None

    @property
    def max_model_len(self) -> int | None:
        """The longest sequence that the model serves, in tokens; ``None``: it does not know."""
        return None
