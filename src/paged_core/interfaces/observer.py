"""Slot ``observers``: told what happened; it decides nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from paged_core.ids import BlockId, BlockKey, SeqId
from paged_core.interfaces.scheduler import Queues
from paged_core.sequence import SequenceGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One step, after its tokens were applied; request ids stand for requests."""

    number: int
    now: float
    """Seconds on the engine's clock when the step was planned."""
    scheduled: Mapping[str, int]
    """Tokens computed per request, in batch order."""
    cached: Mapping[str, int]
    """For requests admitted in this step: tokens that the prefix cache served."""
    preempted: Sequence[str]
    swapped_out: Sequence[str]
    swapped_in: Sequence[str]
    ignored: Sequence[str]
    finished: Sequence[str]
    queues: Queues
    """Queues of the scheduler; requests that are held back wait behind the others."""
    free_blocks: int
    seconds: Mapping[str, float]
    """Time spent by phase: ``schedule``, ``prepare``, ``model``, ``sample``, ``apply``."""
    ended: float
    """Seconds on the engine's clock when its tokens were applied."""
    evicted: Sequence[BlockId] = ()
    """Blocks whose cached content was given up, in this order, for that of this step."""
    hits: Mapping[str, Sequence[BlockId]] = field(default_factory=dict)
    """For requests admitted in this step: the cached blocks that they share, if any."""
    copied_blocks: int = 0
    swapped_blocks: int = 0
    """Out and in together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockEvent:
    """A sequence's block table changed: entry ``index`` is now ``block``, or it gave all up."""

    step: int
    """The number of the step that is the first to use it."""
    sequence: SeqId
    index: int | None
    block: BlockId | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheEvent:
    """The prefix cache finds ``block`` by its content, or finds it no more.

    It is told as it happens, while steps are planned and applied; what a step caches is uncached
    again if its chunk is withdrawn or the step fails. Blocks on the host are not cached.
    """

    block: BlockId | None
    """``None``: all blocks, whose content was given up at once."""
    key: BlockKey | None
    """Its content, which other blocks may hold too; ``None``: it is not found any more."""


class Observer:
    """Override what you want to hear of. An observer that raises is dropped, with a warning."""

    def on_step(self, step: StepRecord, /) -> None:
        """A step was planned, run and applied."""

    def on_request(self, group: SequenceGroup, event: str, /) -> None:
        """``event`` is ``added``, ``admitted``, ``preempted``, ``swapped_out``, ``swapped_in`` or
        ``finished``; the group is as it stands after that. A request that finishes in a step does
        so after ``on_step`` of that step; one that is aborted, at once. Of a request that the
        ``admission`` refuses there is ``refused`` alone; one that is held back is ``added``."""

    def on_block(self, event: BlockEvent, /) -> None:
        """A block table changed."""

    def on_cache(self, event: CacheEvent, /) -> None:
        """Change of what the prefix cache finds."""

    def close(self) -> None:
        """The engine is closing: write what is buffered. A second call changes nothing."""


@runtime_checkable
class SupportsReport(Protocol):
    """An observer that front ends may ask what it knows, between two steps."""

    def report(self, since: int, /) -> Any:
        """Return plain data (numbers, texts, lists, mappings), bounded in size.

        Args:
            since: a number of its own that an earlier report named; 0: there was none.
        """
