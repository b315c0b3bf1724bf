"""What an engine has counted since it was started."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from paged_core.request import FinishReason
from paged_core.sequence import SequenceGroup


@dataclass(slots=True, kw_only=True)
class EngineMetrics:
    """Counts since the start, and what there is now. Tokens are those of finished requests."""

    num_steps: int = 0
    num_unfinished: int = 0
    """Requests that wait or run now."""
    num_finished: int = 0
    """Requests that ended, for whatever reason."""
    num_failed: int = 0
    """Those of them that ended with ``error`` or ``ignored``."""
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    """Prompt tokens found in the cache when a request was first admitted."""
    num_generated_tokens: int = 0
    num_preemptions: int = 0
    """How often a request was preempted, to be computed again or swapped out."""
    num_recomputed_tokens: int = 0
    """Tokens that preemptions took and the cache did not give back at the next admission."""
    num_evictions: int = 0
    """Cached blocks whose content was given up for other content."""
    num_blocks: int = 0
    """Device blocks of the cache without those of pinned prefixes."""
    num_free_blocks: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Time spent by phase of a step: ``schedule``, ``model``, ``sample`` and so on."""

    def count(self, group: SequenceGroup) -> None:
        """Count a request that has ended."""
        failures = (FinishReason.ERROR, FinishReason.IGNORED)
        self.num_finished += 1
        self.num_failed += any(each.finish_reason in failures for each in group.sequences)
        self.num_prompt_tokens += len(group.request.prompt)
        self.num_cached_tokens += group.num_cached or 0
        self.num_generated_tokens += sum(len(each.output) for each in group.sequences)
