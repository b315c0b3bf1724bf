"""Slot ``cost_model``: how long a step takes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

from paged_core.engine.contexts import Context

if TYPE_CHECKING:
    from paged_core.settings.schema import EngineSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class CostModelContext(Context):
    """Context that the factory of a cost model gets in addition to its options."""

    settings: EngineSettings


IDLE_SECONDS = 0.005
"""An engine that does nothing for longer has been idle."""


@dataclass(slots=True, kw_only=True)
class StepWork:
    """Work of a step: tokens computed and blocks moved."""

    prefill_tokens: int = 0
    """Tokens of sequences that compute several, or do not draw one yet."""
    prefill_sequences: int = 0
    """The sequences that these tokens are of."""
    prefill_pairs: int = 0
    """Pairs of a query and a key that attention computes for them."""
    prefill_context: int = 0
    """Cached tokens that attention reads for them."""
    decode_sequences: int = 0
    """Sequences that compute one token and draw the next."""
    decode_context: int = 0
    """Cached tokens that attention reads for them."""
    sampled_rows: int = 0
    """Rows of logits."""
    after_idle: int = 0
    """1 if the engine had done nothing for ``IDLE_SECONDS`` before, so that threads and caches must
    be woken and filled; else 0."""
    copied_blocks: int = 0
    swapped_blocks: int = 0
    """Out and in together."""


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
