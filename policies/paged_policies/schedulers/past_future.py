"""Admission by the memory that running requests are expected to need until they end."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque
from typing import Literal

from pydantic import Field, PositiveInt

from paged_core.engine.contexts import SchedulerContext
from paged_core.interfaces.scheduler import StepLimits
from paged_core.plugins.component import ComponentSettings
from paged_core.request import FinishReason
from paged_core.sequence import SequenceGroup
from paged_policies.schedulers.token_budget import TokenBudgetScheduler, TokenBudgetSettings

_ENDED = frozenset({FinishReason.STOP, FinishReason.LENGTH})


class PastFutureSettings(ComponentSettings):
    """Options of :class:`PastFutureScheduler`."""

    name: Literal["past_future"] = "past_future"
    quantile: float = Field(
        default=0.75, ge=0, le=1, description="of the longer earlier answers, that is expected"
    )
    window: PositiveInt = Field(default=1000, description="earlier answers that are remembered")
    max_num_batched_tokens: PositiveInt = Field(
        default=2048, description="tokens computed in one step, at most"
    )
    max_num_seqs: PositiveInt = Field(default=256, description="sequences that run, at most")

    @property
    def step_limits(self) -> StepLimits:
        """The most that a step computes."""
        return StepLimits(self.max_num_seqs, self.max_num_batched_tokens)


class PastFutureScheduler(TokenBudgetScheduler):
    """``token_budget``, which admits a request only while all that runs is expected to fit.

    The Past-Future scheduler of LightLLM (Gong et al., ASPLOS 2025). From the past: an answer is
    expected to be as long as a quantile of the earlier ones that were longer than what it has;
    without any, as long as it may be. The paper draws from these instead. Into the future: the most
    tokens held at once is at the end of one of the requests, while those that are shorter are gone.
    Blocks that requests share count for each. While nothing runs, one request is admitted.
    """

    def __init__(self, options: PastFutureSettings, context: SchedulerContext, /) -> None:
        budget = TokenBudgetSettings(
            max_num_batched_tokens=options.max_num_batched_tokens,
            max_num_seqs=options.max_num_seqs,
        )
        super().__init__(budget, context)
        self._quantile, self._kv_cache = options.quantile, context.kv_cache
        self._recent, self._window = deque[int](), options.window
        self._lengths: list[int] = []
        """The recent ones, sorted."""

    def remove(self, group: SequenceGroup, /) -> None:
        super().remove(group)
        for sequence in group.sequences:
            if sequence.finish_reason in _ENDED:
                self._recent.append(len(sequence.output))
                insort(self._lengths, self._recent[-1])
        while len(self._recent) > self._window:
            del self._lengths[bisect_left(self._lengths, self._recent.popleft())]

    def _has_room(self, group: SequenceGroup) -> bool:
        if not self._running:
            return True
        ends = sorted(map(self._future, (*self._running, *self._swapped, group)), reverse=True)
        slots = self._kv_cache.num_blocks * self._kv_cache.block_size
        held = width = 0
        for left, tokens, num_seqs in ends:
            held += tokens
            width += num_seqs
            if held + width * left > slots:
                return False
        return True

    def _future(self, group: SequenceGroup) -> tuple[int, int, int]:
        """Return the tokens that each sequence of a group is expected to get, those that it holds,
        and its sequences.
        """
        has = group.longest - len(group.request.prompt)
        longer = bisect_right(self._lengths, has)
        rest, left = len(self._lengths) - longer, group.max_length - group.longest
        if rest:
            place = longer + min(int(self._quantile * rest), rest - 1)
            left = min(left, self._lengths[place] - has)
        return left, sum(each.num_tokens for each in group.live), group.num_seqs
