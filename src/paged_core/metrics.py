"""What an engine has counted since it was started."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from paged_core.request import FinishReason
from paged_core.sequence import SequenceGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineMetrics:
    """Counts since the start, and what there is now. Tokens are those of finished requests."""

    num_steps: int
    num_unfinished: int
    """Requests that wait or run now."""
    num_finished: int
    """Requests that ended, for whatever reason."""
    num_failed: int
    """Those of them that ended with ``error`` or ``ignored``."""
    num_prompt_tokens: int
    num_cached_tokens: int
    """Prompt tokens found in the cache when a request was first admitted."""
    num_generated_tokens: int
    num_preemptions: int
    """How often a request was preempted, swapped out or to be computed again."""
    num_blocks: int
    """Device blocks of the cache without those of pinned prefixes."""
    num_free_blocks: int
    seconds: Mapping[str, float]
    """Time spent by phase of a step: ``schedule``, ``model``, ``sample`` and so on."""


@dataclass(slots=True)
class Totals:
    """The counts that grow as requests are preempted and end."""

    num_finished: int = 0
    num_failed: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_generated_tokens: int = 0
    num_preemptions: int = 0

    def finished(self, group: SequenceGroup) -> None:
        """Count a request that has ended."""
        failures = (FinishReason.ERROR, FinishReason.IGNORED)
        self.num_finished += 1
        self.num_failed += any(each.finish_reason in failures for each in group.sequences)
        self.num_prompt_tokens += len(group.request.prompt)
        self.num_cached_tokens += group.num_cached or 0
        self.num_generated_tokens += sum(len(each.output) for each in group.sequences)

    def as_dict(self) -> dict[str, int]:
        """Return them by name."""
        return asdict(self)
