"""vLLM V1's scheduler: one budget of tokens a step, spent on all sequences with tokens pending."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from paged_core.checked.calls import asking
from paged_core.engine.contexts import SchedulerContext
from paged_core.engine.planner import Planner
from paged_core.interfaces.scheduler import Queues, Schedule, Scheduler, StepLimits
from paged_core.plugins.component import ComponentSettings
from paged_core.requests.waiting_queue import WaitingQueue
from paged_core.sequence import SequenceGroup, Status


class TokenBudgetSettings(ComponentSettings):
    """Options of :class:`TokenBudgetScheduler`."""

    name: Literal["token_budget"] = "token_budget"
    max_num_batched_tokens: PositiveInt = Field(
        default=2048, description="tokens computed in one step, at most"
    )
    max_num_seqs: PositiveInt = Field(default=256, description="sequences that run, at most")
    chunked_prefill: bool = Field(
        default=True, description="split a prompt over steps where the budget is too small for it"
    )
    long_prefill_token_threshold: NonNegativeInt = Field(
        default=0, description="tokens of one prompt in one step, at most; 0: no such limit"
    )
    reserve_full_sequence: bool = Field(
        default=True, description="admit a request only if all of its tokens fit the free blocks"
    )

    @property
    def step_limits(self) -> StepLimits:
        """The most that a step computes."""
        return StepLimits(self.max_num_seqs, self.max_num_batched_tokens)


class TokenBudgetScheduler(Scheduler):
    """Running requests first, in the order of their admission, then the head of the queue.

    A request that decodes takes one token of the budget, a prompt what is left of it, so prompts
    are prefilled in chunks beside decoding. When blocks run out a victim is preempted, and nothing
    is admitted in that step. The rules are those of vLLM 0.32's V1 engine; groups of several
    sequences and swapping, which that engine lacks, are this project's own: a decoding group runs
    whole or not at all, and while a group is swapped out none is admitted.

    Under an order that has quanta, running requests whose quantum is over are preempted for the one
    that comes next, and swapped groups are resumed by their place in the order.
    """

    def __init__(self, options: TokenBudgetSettings, context: SchedulerContext, /) -> None:
        self._order = context.queue_order
        self._waiting = WaitingQueue(context.queue_order)
        self._running: list[SequenceGroup] = []
        self._swapped: list[SequenceGroup] = []
        self.planner: Planner = Planner(
            context,
            self._running,
            self._requeue,
            num_tokens=options.max_num_batched_tokens,
            num_seqs=options.max_num_seqs,
            chunk=options.long_prefill_token_threshold,
            whole_prompts=not options.chunked_prefill,
            reserve_full_sequence=options.reserve_full_sequence,
        )

    def __len__(self) -> int:
        return len(self._running) + len(self._swapped) + len(self._waiting)

    def queues(self) -> Queues:
        self._waiting.refresh(self.planner.now)
        return Queues(tuple(self._running), self._waiting.ordered(), tuple(self._swapped))

    def add(self, group: SequenceGroup, /) -> None:
        self._waiting.push(group, self.planner.now)

    def remove(self, group: SequenceGroup, /) -> None:
        if group in self._waiting:
            self._waiting.remove(group)
        elif group in self._swapped:
            self._swapped.remove(group)
        else:
            self._running.remove(group)

    def schedule(self, now: float, /) -> Schedule:
        planner = self.planner
        planner.begin(now)
        if len(self) <= 1:
            planner.limits.chunk = 0  # one request alone is not limited
        if planner.quanta.exist:
            self._end_quanta()
        planner.grow(self._running)
        self._start()
        return planner.plan

    def _start(self) -> None:
        """Resume and admit groups while they fit."""
        waiting, planner = self._waiting, self.planner
        while self._swapped and not self._overtakes() and planner.resume(self._swapped[0]):
            del self._swapped[0]
        if not waiting or not self._may_admit() or planner.is_full:
            return  # whichever is the head: an order that changes need not be sorted
        waiting.refresh(planner.now)
        while waiting and self._may_admit() and self._has_room(waiting.head()):
            if not planner.admit(waiting.head()):
                break
            waiting.pop()

    def _may_admit(self) -> bool:
        return not self._swapped or self._overtakes()

    def _has_room(self, group: SequenceGroup) -> bool:
        """Return whether a waiting group may be admitted, if blocks are left for it."""
        return True

    def _overtakes(self) -> bool:
        """Return whether the head of the queue goes before the first swapped group."""
        if not (self.planner.quanta.exist and self._swapped and self._waiting):
            return False
        key, now = self._order.key, self.planner.now
        with asking(self._order):
            return bool(key(self._waiting.head(), now) < key(self._swapped[0], now))

    def _end_quanta(self) -> None:
        swapped, waiting, now = self._swapped, self._waiting, self.planner.now
        if swapped:
            with asking(self._order):
                swapped.sort(key=lambda group: self._order.key(group, now))
        spent = self.planner.spent() if swapped or waiting else []
        if swapped or spent:
            waiting.refresh(now)
        if spent:
            self.planner.end_quanta(spent, waiting.head() if self._may_admit() else swapped[0])

    def _requeue(self, group: SequenceGroup) -> None:
        if group.status is Status.SWAPPED:
            self._swapped.append(group)
        else:
            self._waiting.push_front(group, self.planner.now)
