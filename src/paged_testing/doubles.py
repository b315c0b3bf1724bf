"""Executors that fail or run late, an order of endless preemption, a scheduler that is checked."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from itertools import product
from typing import Any, Literal, NamedTuple, Self

from pydantic import Field

from paged_core.cache.kv_cache import KVCache
from paged_core.engine.contexts import OrderContext
from paged_core.engine.engine import Engine
from paged_core.engine.planner import Planner
from paged_core.interfaces.executor import Capacity, Executor
from paged_core.interfaces.queue_order import QueueOrder
from paged_core.interfaces.scheduler import Queues, Schedule, Scheduler, StepLimits
from paged_core.plugins.component import Component, ComponentSettings
from paged_core.sequence import SequenceGroup, Status
from paged_core.step import StepInput, StepResult
from paged_testing.policy_subjects import untouched


class StepFailure(RuntimeError):
    """A deliberate failure."""


class PassingExecutor(Executor):
    """Passes everything on to the executor of an engine."""

    def __init__(self, inner: Executor) -> None:
        self.inner = inner

    @classmethod
    def install(cls, engine: Engine, **options: Any) -> Self:
        """Wrap the executor of ``engine``."""
        executor = cls(engine.executor, **options)
        engine.executor = executor
        return executor

    def start(self) -> Capacity:
        return self.inner.start()

    def submit(self, step: StepInput, /) -> Any:
        return self.inner.submit(step)

    def collect(self, handle: Any, /) -> StepResult:
        return self.inner.collect(handle)

    def close(self) -> None:
        self.inner.close()


class FailingExecutor(PassingExecutor):
    """Passes steps on to the executor of an engine, and raises in some.

    Args:
        before: numbers of submissions (from 0) that raise before the executor gets them.
        after: numbers of submissions that raise after the executor ran them; the result is lost.
        error: what is raised.
    """

    def __init__(
        self,
        inner: Executor,
        *,
        before: Collection[int] = (),
        after: Collection[int] = (),
        error: type[Exception] = StepFailure,
    ) -> None:
        super().__init__(inner)
        self.num_submitted = 0
        self._before = frozenset(before)
        self._after = frozenset(after)
        self._error = error

    def submit(self, step: StepInput, /) -> Any:
        number, self.num_submitted = self.num_submitted, self.num_submitted + 1
        if number in self._before:
            raise self._error(f"submission {number} fails before it runs")
        return number, self.inner.submit(step)

    def collect(self, handle: Any, /) -> StepResult:
        number, inner = handle
        result = self.inner.collect(inner)
        if number in self._after:
            raise self._error(f"submission {number} fails after it ran")
        return result


class BackgroundExecutor(PassingExecutor):
    """Passes a step on only when it, or a later one, is collected.

    So an engine that plans ahead cannot have seen any result by then, and one that changes a step
    after it was submitted is found out.
    """

    runs_in_background = True

    def __init__(self, inner: Executor) -> None:
        super().__init__(inner)
        self._submitted: deque[tuple[int, StepInput]] = deque()
        self._results: dict[int, StepResult | BaseException] = {}
        self._num_submitted = 0

    def submit(self, step: StepInput, /) -> int:
        handle = self._num_submitted
        self._num_submitted += 1
        self._submitted.append((handle, step))
        return handle

    def collect(self, handle: Any, /) -> StepResult:
        while self._submitted and self._submitted[0][0] <= handle:
            number, step = self._submitted.popleft()
            try:
                self._results[number] = self.inner.collect(self.inner.submit(step))
            except BaseException as error:  # noqa: BLE001 - raised again in ``collect``
                self._results[number] = error
        result = self._results.pop(handle)
        if isinstance(result, BaseException):
            raise result
        return result


class AlwaysOverSettings(ComponentSettings):
    """Options of :class:`AlwaysOverOrder`."""

    name: Literal["always_over"] = "always_over"
    waiting_first: bool = Field(
        default=True, description="whether waiting groups come before all running ones"
    )
    turns: int = Field(default=0, description="first groups, which come first in turns")


class AlwaysOverOrder(QueueOrder):
    """First come, first served, where every running group may be preempted at any time.

    With ``waiting_first``, for any waiting group; otherwise for one that came earlier, or has its
    turn.
    """

    def __init__(self, options: AlwaysOverSettings, context: OrderContext, /) -> None:
        self._waiting_first, self._turns = options.waiting_first, options.turns
        self.stable = not self._turns

    def key(self, group: SequenceGroup, now: float, /) -> Any:
        if self._turns:
            place = (group.number - int(now) // 2) % self._turns
            return place if group.number < self._turns else self._turns
        return (self._waiting_first and group.status is Status.RUNNING, group.number)

    def quantum_over(self, group: SequenceGroup, now: float, /) -> bool:
        """Always true."""
        return True


ALWAYS_OVER = Component(
    "queue_order",
    AlwaysOverSettings,
    f"{__name__}:AlwaysOverOrder",
    summary="every quantum is always over",
)


class TurningSettings(ComponentSettings):
    """Options of :class:`TurningOrder`."""

    name: Literal["turning"] = "turning"
    at: float = Field(default=0.0, description="second from which groups come by number")
    equal: bool = Field(default=False, description="whether all groups are equal")


class TurningOrder(QueueOrder):
    """The first request first, and then the last ones first until a time, the earliest from it."""

    stable = False

    def __init__(self, options: TurningSettings, context: OrderContext, /) -> None:
        self._options = options

    def key(self, group: SequenceGroup, now: float, /) -> Any:
        number = 0 if self._options.equal else group.number
        return bool(number), -number if now < self._options.at else number


TURNING = Component(
    "queue_order", TurningSettings, f"{__name__}:TurningOrder", summary="turns at a time"
)


class WatchedScheduler(Scheduler):
    """Passes everything on to the scheduler of an engine.

    Args:
        budget: tokens that a step may compute; ``None``: any number.
        max_num_seqs: sequences that may run; ``None``: any number.
        by_arrival: whether the queue order is that of arrival.

    Raises:
        AssertionError: from ``schedule``; a decision breaks the contract, the message says how.
    """

    def __init__(
        self,
        inner: Scheduler,
        kv_cache: KVCache,
        budget: int | None,
        max_num_seqs: int | None,
        by_arrival: bool = False,
    ) -> None:
        self.inner = inner
        self._by_arrival = by_arrival
        self._kv = kv_cache
        self._budget = budget
        self._max_num_seqs = max_num_seqs
        self.step_limits = StepLimits()
        """Limits that its options state."""
        self._planner = inner.planner if isinstance(inner.planner, Planner) else None
        self._late: list[str] = []
        if self._planner is not None:
            self._preempt = self._planner.preempt
            self._planner.preempt = self._noted  # type: ignore[method-assign]
        self._idle_since: float | None = None
        self.decisions: list[Decision] = []
        """Decisions of each step."""
        self.preempted: set[str] = set()
        """Ids of requests that were preempted or swapped out in any step."""

    @classmethod
    def install(
        cls,
        engine: Engine,
        budget: int | None,
        max_num_seqs: int | None,
        by_arrival: bool = False,
    ) -> WatchedScheduler:
        """Put one between ``engine`` and its scheduler."""
        watched = cls(engine.scheduler, engine.kv_cache, budget, max_num_seqs, by_arrival)
        engine.scheduler = watched
        return watched

    def may_run(self, num_tokens: int) -> bool:
        """Return whether one step may compute so many tokens."""
        return self._budget is None or num_tokens <= self._budget

    @property
    def length_cap(self) -> int:
        return self.inner.length_cap

    @property
    def max_num_seqs(self) -> int | None:
        return self.inner.max_num_seqs

    def add(self, group: SequenceGroup, /) -> None:
        before = len(self.inner)
        with untouched([group]):
            self.inner.add(group)
        assert len(self.inner) == before + 1, "add() did not add the group"

    def refuse(self, group: SequenceGroup, /) -> str | None:
        before = len(self.inner)
        with untouched([group]):
            reason = self.inner.refuse(group)
        assert len(self.inner) == before, "refuse() must change nothing"
        return reason

    def remove(self, group: SequenceGroup, /) -> None:
        before = len(self.inner)
        with untouched([group]):
            self.inner.remove(group)
        assert len(self.inner) == before - 1, "remove() did not remove the group"

    def queues(self) -> Queues:
        return self.inner.queues()

    def __len__(self) -> int:
        return len(self.inner)

    def schedule(self, now: float, /) -> Schedule:
        try:
            return self._checked(now)
        except AssertionError as error:
            error.args = (f"step {len(self.decisions)}: {error}",)
            raise

    def _noted(self, group: SequenceGroup) -> None:
        admitted = [other.id for other, _ in self._planner.plan.admitted] if self._planner else []
        if admitted:
            self._late.append(f"{group} is preempted after {admitted} were admitted")
        self._preempt(group)

    def _checked(self, now: float) -> Schedule:
        before = self.inner.queues()
        queues = {name: list(getattr(before, name)) for name in ("running", "waiting", "swapped")}
        status_before = {group: group.status for queue in queues.values() for group in queue}
        in_flight = [group for group in queues["running"] if group.awaits_step]
        running = list(self._planner.running) if self._planner else []
        given = {group: _given(group) for queue in queues.values() for group in queue}
        waits, ranks = [*queues["waiting"], *queues["swapped"]], dict[SequenceGroup, Any]()
        if self._by_arrival:
            ranks = {group: (group.arrival, group.number) for group in waits}
        elif self._planner and self._planner._order.stable:
            ranks = {group: self._planner._order.key(group, now) for group in waits}
        plan = self.inner.schedule(now)
        assert not self._late, (
            f"{self._late[0]} in this step, since blocks were short: let running groups grow first"
        )
        ignored = [group for group, _ in plan.ignored]
        for group, facts in given.items():
            assert group in ignored or facts == _given(group), (
                f"schedule() changed {group} from {facts} to {_given(group)}; it is to change none "
                "of its tokens, sequences and limits"
            )
        for name, queue in queues.items():
            assert list(getattr(before, name)) == queue, (
                f"schedule() changes `{name}` of an earlier queues(): return a copy, or a tuple"
            )
        self._check_running(running, now)
        self._check_batch(plan)
        self._check_queues(plan, queues["waiting"])
        self._check_moves(plan, status_before, ranks)
        self._check_waits(plan, queues, now)
        for group in in_flight:
            assert group.status is Status.RUNNING, (
                f"{group} is preempted, and has nothing pending: it waits for a step in flight"
            )
        self.decisions.append(Decision.of(plan))
        self.preempted.update(group.id for group in (*plan.preempted, *plan.swapped_out))
        return plan

    def _check_running(self, before: list[SequenceGroup], now: float) -> None:
        """Check the order of the planner's list of running groups, which had this one."""
        if self._planner is None:
            return
        stayed = [group for group in self._planner.running if group in before]
        was, key = [group for group in before if group in stayed], self._planner._order.key
        assert stayed == was or stayed == sorted(stayed, key=lambda group: key(group, now)), (
            f"schedule() puts {was}, its list of running groups, in the order {stayed}: "
            "neither that of admission nor the queue order; sort a copy"
        )

    def _check_batch(self, plan: Schedule) -> None:
        assert len(plan.sequences) == len(plan.num_tokens), "sequences and num_tokens are parallel"
        assert len(set(map(id, plan.sequences))) == len(plan.sequences), (
            "a sequence is scheduled twice in one step"
        )
        size = self._kv.block_size
        for sequence, num_tokens in zip(plan.sequences, plan.num_tokens, strict=True):
            assert num_tokens >= 1, f"{sequence} is scheduled for {num_tokens} tokens"
            assert num_tokens <= sequence.num_pending, (
                f"{sequence} is scheduled for {num_tokens} tokens, {sequence.num_pending} are left"
            )
            end = sequence.num_scheduled + num_tokens
            assert len(sequence.table.blocks) * size >= end, f"{sequence} has too few blocks"
            assert sequence in sequence.group.live, f"{sequence} is scheduled, but has ended"
            assert sequence.group.status is Status.RUNNING, f"{sequence.group} is not RUNNING"
        total = sum(plan.num_tokens)
        assert self._budget is None or total <= self._budget, (
            f"{total} tokens are scheduled, {self._budget} is the budget of a step"
        )
        limits = self.step_limits.num_tokens, self.step_limits.num_seqs
        for most, count in zip(limits, (total, len(plan.sequences)), strict=True):
            assert most is None or count <= most, (
                f"{total} tokens of {len(plan.sequences)} sequences, beyond {self.step_limits}"
            )

    def _check_queues(self, plan: Schedule, waiting: list[SequenceGroup]) -> None:
        queues = self.inner.queues()
        held = [*queues.running, *queues.waiting, *queues.swapped]
        assert len(set(map(id, held))) == len(held), "a group is in two queues"
        assert len(self.inner) == len(held), "len() disagrees with queues()"
        num_seqs = sum(group.num_seqs for group in queues.running)
        for limit in (self._max_num_seqs, self.inner.max_num_seqs):
            assert limit is None or num_seqs <= limit, f"{num_seqs} sequences run, {limit} may"
        for groups, status in (
            (queues.running, Status.RUNNING),
            (queues.waiting, Status.WAITING),
            (queues.swapped, Status.SWAPPED),
        ):
            for group in groups:
                assert group.status is status, f"{group} should be {status.name}"
        for group in queues.waiting:
            for sequence in group.live:
                assert not sequence.table.blocks, f"{sequence} waits, but holds blocks"
        for sequence in plan.sequences:
            assert sequence.group in queues.running, f"{sequence} is scheduled, but does not run"
        for group, _ in plan.admitted:
            assert group in waiting, f"{group} is admitted, but did not wait"
        for group, reason in plan.ignored:
            assert group not in held, f"{group} is ignored, but still held"
            assert reason, f"{group} is ignored without a reason"
        for group in plan.preempted:
            assert group not in queues.running, f"{group} is preempted, but runs"

    def _check_waits(
        self, plan: Schedule, queues: dict[str, list[SequenceGroup]], now: float
    ) -> None:
        """Check that what waits is planned where nothing else was there, but for `may_wait`."""
        left = queues["waiting"] + queues["swapped"]
        is_free = self._kv.num_free == self._kv.num_blocks and not queues["running"]
        if not left or not is_free or plan.sequences or plan.ignored:
            self._idle_since = None
            return
        since = self._idle_since = now if self._idle_since is None else self._idle_since
        seconds = self.inner.may_wait
        assert seconds and now - since <= seconds, (
            f"nothing is planned {now - since} s after {left} could go on, beside which nothing "
            f"runs, and may_wait is {seconds} s"
        )

    def _check_moves(
        self,
        plan: Schedule,
        status_before: dict[SequenceGroup, Status],
        ranks: dict[SequenceGroup, Any],
    ) -> None:
        """Check that the groups named in the plan became in this step what it says."""
        queues = self.inner.queues()
        held = {*queues.running, *queues.waiting, *queues.swapped}
        admitted = [group for group, _ in plan.admitted]
        ignored = [group for group, _ in plan.ignored]
        reported = {
            (Status.WAITING, Status.RUNNING): ("admitted", admitted),
            (Status.RUNNING, Status.WAITING): ("preempted", plan.preempted),
            (Status.RUNNING, Status.SWAPPED): ("swapped_out", plan.swapped_out),
            (Status.SWAPPED, Status.RUNNING): ("swapped_in", plan.swapped_in),
        }
        for group, status in status_before.items():
            if group not in held:
                assert group in ignored, f"{group} is held no more, but not among the ignored"
            elif (status, group.status) in reported:
                name, groups = reported[status, group.status]
                assert group in groups, (
                    f"{group} went from {status.name} to {group.status.name}, but is not among "
                    f"the {name}"
                )
        for group in held:
            assert group in status_before, f"{group} was not held before"
        assert len(set(admitted)) == len(admitted), "a group is admitted twice in one step"
        stay = [each for each in queues.swapped if status_before.get(each) is Status.SWAPPED]
        for group, other in product(admitted, stay if ranks else ()):
            assert ranks[group] < ranks[other], (
                f"{group} is admitted, and {other}, which comes before it in the queue order, "
                "stays swapped out: resume first what is swapped out"
            )
        for group, cached in plan.admitted:
            if group.status is Status.RUNNING:
                skipped = sum(sequence.num_scheduled for sequence in group.live)
                assert cached == skipped, (
                    f"{group} is admitted with {cached} cached tokens, {skipped} were taken from "
                    "the cache"
                )


def _given(group: SequenceGroup) -> dict[str, Any]:
    """Return facts about a group that are no matter of its scheduler."""
    names = ("request", "number", "max_length", "forked", "arrival", "finished_at")
    tokens = [list(sequence.tokens) for sequence in group.live]
    lists = {"sequences": list(group.sequences), "live": list(group.live), "tokens": tokens}
    return {**{name: getattr(group, name) for name in names}, **lists}


class Decision(NamedTuple):
    """A plan as ids and numbers, which compare and can be pickled."""

    sequences: list[tuple[str, int]]
    num_tokens: list[int]
    blocks: list[list[int]]
    admitted: list[tuple[str, int]]
    """Ids, with their cached tokens."""
    preempted: list[str]
    swapped_out: list[str]
    swapped_in: list[str]
    ignored: list[tuple[str, str]]

    def __repr__(self) -> str:
        """Return what is not empty, by name."""
        return str({name: value for name, value in self._asdict().items() if value})

    @classmethod
    def of(cls, plan: Schedule, /) -> Self:
        """Return what a plan decides."""
        return cls(
            [(sequence.group.id, sequence.index) for sequence in plan.sequences],
            list(plan.num_tokens),
            [list(sequence.table.blocks) for sequence in plan.sequences],
            [(group.id, cached) for group, cached in plan.admitted],
            [group.id for group in plan.preempted],
            [group.id for group in plan.swapped_out],
            [group.id for group in plan.swapped_in],
            [(group.id, reason) for group, reason in plan.ignored],
        )
