"""Request-level batching: a batch is formed, and runs until the last request of it has ended."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, PositiveInt

from paged_core.engine.contexts import SchedulerContext
from paged_core.interfaces.scheduler import StepLimits
from paged_core.plugins.component import ComponentSettings
from paged_policies.schedulers.prefill_or_decode import (
    PrefillOrDecodeScheduler,
    PrefillOrDecodeSettings,
)


class StaticBatchSettings(ComponentSettings):
    """Options of :class:`StaticBatchScheduler`."""

    name: Literal["static_batch"] = "static_batch"
    max_num_seqs: PositiveInt = Field(default=8, description="sequences of a batch, at most")
    max_num_batched_tokens: PositiveInt = Field(
        default=1 << 20, description="prompt tokens of a batch, at most; a memory limit"
    )

    @property
    def step_limits(self) -> StepLimits:
        """The most that a step computes."""
        return StepLimits(self.max_num_seqs, self.max_num_batched_tokens)


class StaticBatchScheduler(PrefillOrDecodeScheduler):
    """As FasterTransformer was used: no request joins a running batch, even if some have finished.

    The baseline that iteration-level scheduling improves on most if output lengths differ.
    No running request is preempted for a waiting one, which could not join the batch.
    """

    preempts_for_head: ClassVar[bool] = False

    def __init__(self, options: StaticBatchSettings, context: SchedulerContext, /) -> None:
        whole = PrefillOrDecodeSettings(
            max_num_batched_tokens=options.max_num_batched_tokens,
            max_num_seqs=options.max_num_seqs,
        )
        super().__init__(whole, context)

    def _is_open(self) -> bool:
        return not self._running or self.planner.restoring is not None
