"""Orca's scheduler: requests come and go between iterations, prompts in one piece."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveInt

from paged_core.engine.contexts import SchedulerContext
from paged_core.interfaces.scheduler import StepLimits
from paged_core.plugins.component import ComponentSettings
from paged_policies.schedulers.token_budget import TokenBudgetScheduler, TokenBudgetSettings


class IterationLevelSettings(ComponentSettings):
    """Options of :class:`IterationLevelScheduler`."""

    name: Literal["iteration_level"] = "iteration_level"
    max_num_seqs: PositiveInt = Field(default=256, description="sequences that run, at most")
    max_num_batched_tokens: PositiveInt = Field(
        default=1 << 20, description="tokens computed in one iteration, at most; a memory limit"
    )

    @property
    def step_limits(self) -> StepLimits:
        """The most that a step computes."""
        return StepLimits(self.max_num_seqs, self.max_num_batched_tokens)


class IterationLevelScheduler(TokenBudgetScheduler):
    """Iteration-level scheduling with selective batching (Yu et al., OSDI 2022).

    Every iteration decodes one token of each running request and prefills the whole prompts of
    those that are admitted. A long prompt delays every request that decodes beside it, which
    chunked prefill under a token budget avoids.
    """

    def __init__(self, options: IterationLevelSettings, context: SchedulerContext, /) -> None:
        budget = TokenBudgetSettings(
            max_num_batched_tokens=options.max_num_batched_tokens,
            max_num_seqs=options.max_num_seqs,
            chunked_prefill=False,
        )
        super().__init__(budget, context)
