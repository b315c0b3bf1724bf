"""Sarathi-Serve's chunks: a token budget for each step, by a limit on its predicted time."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt

from paged_core.engine.contexts import SchedulerContext
from paged_core.interfaces.scheduler import Schedule, StepLimits
from paged_core.interfaces.step_work import StepWork
from paged_core.plugins.component import ComponentSettings
from paged_core.requests.waiting import uncached_tokens
from paged_policies.schedulers.token_budget import TokenBudgetScheduler, TokenBudgetSettings


class TimeBudgetSettings(ComponentSettings):
    """Options of :class:`TimeBudgetScheduler`."""

    name: Literal["time_budget"] = "time_budget"
    max_step_seconds: PositiveFloat = Field(
        default=0.05, description="time of a step that computes prompts, as predicted, at most"
    )
    min_prefill_tokens: PositiveInt = Field(
        default=16, description="tokens of prompts that a step may compute however long it takes"
    )
    max_num_batched_tokens: PositiveInt = Field(
        default=8192, description="tokens computed in one step, at most"
    )
    max_num_seqs: PositiveInt = Field(default=256, description="sequences that run, at most")

    @property
    def step_limits(self) -> StepLimits:
        """The most that a step computes."""
        return StepLimits(self.max_num_seqs, self.max_num_batched_tokens)


class TimeBudgetScheduler(TokenBudgetScheduler):
    """A token for each sequence that decodes, then prompts up to a limit on the step's time.

    Sarathi-Serve (Agrawal et al., OSDI 2024) finds a token budget beforehand, the largest whose
    steps keep the time between tokens; here the ``cost_model`` of the settings is asked in each
    step that has prompts, for the sequences that decode in it, and with what the chunks attend to.
    Of waiting prompts, the first counts with its prefix hit, those after it as without context.
    """

    def __init__(self, options: TimeBudgetSettings, context: SchedulerContext, /) -> None:
        budget = TokenBudgetSettings(
            max_num_batched_tokens=options.max_num_batched_tokens,
            max_num_seqs=options.max_num_seqs,
        )
        super().__init__(budget, context)
        self._options, self._kv_cache = options, context.kv_cache
        self._seconds: Callable[[StepWork], float] = context.make("cost_model").seconds

    def schedule(self, now: float, /) -> Schedule:
        planner, running = self.planner, self._running
        planner.begin(now)
        prompts = {group for group in running if any(each.num_pending > 1 for each in group.live)}
        has_room = planner.limits.seqs_left > 0 or planner.quanta.exist
        if prompts or self._swapped or (self._waiting and has_room):
            self._limit()
        if planner.quanta.exist:
            self._end_quanta()
        planner.grow(group for group in running if group not in prompts)
        planner.grow(group for group in running if group in prompts)
        self._start()
        return planner.plan

    def _limit(self) -> None:
        """Lower the tokens of the step to those that its time allows."""
        limits = self.planner.limits
        chunks, work = list[tuple[int, int]](), StepWork()
        for sequence in [sequence for group in self._running for sequence in group.live]:
            if sequence.num_pending > 1:
                chunks.append((sequence.num_scheduled, sequence.num_pending))
            else:
                work.decode_sequences += sequence.num_pending
                work.decode_context += sequence.num_scheduled * sequence.num_pending
        if self._waiting:
            left = uncached_tokens(self._waiting.head(), self._kv_cache)
            chunks.append((self._waiting.head().longest - left, left))
        chunks.append((0, limits.num_tokens))
        count = bisect_right(
            range(1, limits.num_tokens + 1),
            self._options.max_step_seconds,
            key=lambda count: self._seconds(with_prefill(work, chunks, count)),
        )
        count = max(count, self._options.min_prefill_tokens)
        limits.tokens_left = min(limits.tokens_left, work.decode_sequences + count)


def with_prefill(decodes: StepWork, chunks: list[tuple[int, int]], num_tokens: int) -> StepWork:
    """Return the work of a step that computes so many tokens of prompts, too.

    Args:
        chunks: of each prompt in turn, the tokens that are computed, and those that are left.
    """
    work = replace(decodes, prefill_tokens=num_tokens, sampled_rows=decodes.decode_sequences)
    for start, left in chunks:
        count = min(left, num_tokens)
        num_tokens -= count
        work.prefill_sequences += 1
        work.prefill_pairs += count * start + count * (count + 1) // 2
        work.prefill_context += start
        work.sampled_rows += count == left
        if not num_tokens:
            break
    return work
