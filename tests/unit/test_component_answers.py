"""Components that answer nonsense: the error names them, and the engine serves what follows as one
without faults does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from paged_core.checked.answers import check_capacity
from paged_core.errors import PluginError
from paged_core.ids import SeqId
from paged_core.interfaces.allocator import BlockAllocator
from paged_core.interfaces.executor import Executor
from paged_core.interfaces.scheduler import Schedule
from paged_core.request import Request
from paged_core.sampling_params import SamplingParams
from paged_core.sequence import SequenceGroup
from paged_core.step import StepResult
from paged_policies.allocators.contiguous import ContiguousAllocator, ContiguousSettings
from paged_policies.allocators.hash_cached import HashCachedAllocator
from paged_policies.evictors.lru import LruEvictor
from paged_policies.preemption.modes import RecomputePreemption
from paged_policies.schedulers.token_budget import TokenBudgetScheduler, TokenBudgetSettings
from paged_testing import build_memory_engine
from paged_testing.doubles import PassingExecutor
from paged_testing.served import check_said
from unit.engines import finish
from unit.faulty_settings import (
    FaultyTokenBudgetSettings,
    registry_of,
)
from unit.switched_components import Switch, ask, engine_of, serves_as_ever, switched_off  # noqa: F401

pytestmark = pytest.mark.usefixtures("switched_off")


class Capped(TokenBudgetScheduler):
    length_cap: Any = None


@pytest.mark.parametrize("cap", [0, -1, None, 1.5])
def test_a_length_that_no_sequence_can_have_names_the_scheduler(
    cap: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Capped, "length_cap", cap)
    registry = registry_of("scheduler", Capped, FaultyTokenBudgetSettings)
    engine = build_memory_engine(registry, scheduler="faulty")
    with pytest.raises(PluginError, match=f"scheduler Capped: its length_cap is {cap}; it must"):
        engine.add(ask("A"))
    with pytest.raises(PluginError, match="its length_cap"):
        engine.offer(ask("A"))
    assert not engine.has_unfinished


class OddPreemption(RecomputePreemption):
    def mode(self, group: SequenceGroup, /) -> Any:
        wrong = Switch.wrong
        return wrong[1] if wrong and wrong[0] == "mode" else super().mode(group)

    def tokens_to_reserve(self, group: SequenceGroup, /) -> Any:
        wrong = Switch.wrong
        return wrong[1] if wrong and wrong[0] == "reserve" else super().tokens_to_reserve(group)


@pytest.mark.parametrize("wrong", [("mode", "swap"), ("mode", None), ("mode", 1)])
def test_a_mode_that_is_none_names_the_preemption(wrong: Any) -> None:
    engine = engine_of("preemption", OddPreemption, num_blocks=7)
    groups = [engine.add(ask("A")), engine.add(ask("B"))]
    Switch.wrong = wrong
    finish(engine)
    error = f"preemption 'faulty': mode() returned {wrong[1]!r}; it has to return Preemption"
    assert {(group.sequences[0].error or "")[: len(error)] for group in groups} == {error}
    Switch.wrong = None
    serves_as_ever(engine)


@pytest.mark.parametrize("answer", [-5, 3, "x", True, 1.5])
def test_a_reservation_that_cannot_be_names_the_preemption(answer: Any) -> None:
    engine = engine_of("preemption", OddPreemption)
    Switch.wrong = ("reserve", answer)
    with capture_logs() as logs, pytest.raises(PluginError, match="preemption 'faulty': tokens_to"):
        engine.add(ask("A"))
    assert [log["event"] for log in logs if "stack" in log] == ["request_not_added"]
    Switch.wrong = None
    serves_as_ever(engine)


class OddEvictor(LruEvictor):
    def evict(self) -> Any:
        return super().evict() if Switch.wrong is None else Switch.wrong


@pytest.mark.parametrize("answer", [999, -1, "2", True, 0])
def test_a_block_that_an_evictor_does_not_hold_names_it(answer: Any) -> None:
    engine = engine_of("evictor", OddEvictor, num_blocks=6)
    engine.add(ask("A"))
    finish(engine)
    Switch.wrong = answer
    group = engine.add(
        Request(id="B", prompt=tuple(range(20)), sampling=SamplingParams(max_tokens=2))
    )
    finish(engine)
    assert f"evictor OddEvictor: evict() returned {answer!r}, which" in (
        group.sequences[0].error or ""
    )
    Switch.wrong = None
    serves_as_ever(engine)


class NoSchedule(TokenBudgetScheduler):
    def schedule(self, now: float, /) -> Any:
        return None if Switch.wrong else super().schedule(now)


def test_a_scheduler_that_returns_no_schedule_is_told_so_and_logged_once() -> None:
    registry = registry_of("scheduler", NoSchedule, FaultyTokenBudgetSettings)
    engine = build_memory_engine(registry, scheduler="faulty")
    Switch.wrong = True
    with capture_logs() as logs:
        for name in "ABC":
            group = engine.add(ask(name))
            engine.step()
            error = group.sequences[0].error or ""
            assert error == (
                "scheduler 'faulty': schedule() returned None; it has to return a Schedule"
            )
    restarted = [log for log in logs if log["event"] == "policies_restarted"]
    assert [log["stack"] is None for log in restarted] == [False, True, True]
    Switch.wrong = None
    serves_as_ever(engine)


class NoResult(PassingExecutor):
    def collect(self, handle: Any, /) -> Any:
        super().collect(handle)


def test_an_executor_that_returns_no_result_is_told_so() -> None:
    engine = build_memory_engine()
    NoResult.install(engine)
    group = engine.add(ask("A"))
    engine.step()
    assert "collect() returned None; it has to return a StepResult" in (
        group.sequences[0].error or ""
    )


@pytest.mark.parametrize(
    "claims",
    [{"num_blocks": 0}, {"num_blocks": 10**12}, {"num_host_blocks": -1}, {"max_model_len": 0}],
)
def test_an_executor_that_can_hold_nothing_or_anything_is_refused(claims: dict[str, int]) -> None:
    capacity = replace(build_memory_engine().capacity, **claims)
    with pytest.raises(PluginError, match=next(iter(claims))):
        check_capacity(capacity)


# ---------------------------------------------------------------------- nonsense from allocators


def lying(base: type, method: str) -> Callable[..., Any]:
    """A method that changes its answer by the switch, a function of the method and the answer."""

    def answer(self: Any, *args: Any) -> Any:
        found = getattr(base, method)(self, *args)
        return found if Switch.wrong is None else Switch.wrong(method, found)

    return answer


class LyingAllocator(HashCachedAllocator):
    allocate = lying(HashCachedAllocator, "allocate")
    look_up = lying(HashCachedAllocator, "look_up")
    cache = lying(HashCachedAllocator, "cache")


class LyingRuns(ContiguousAllocator):
    reserve = lying(ContiguousAllocator, "reserve")

    def __init__(self, options: Any, parts: Any, /) -> None:
        super().__init__(ContiguousSettings(), parts)


def lie(method: str, change: Callable[[Any], Any]) -> Callable[[str, Any], Any]:
    return lambda called, found: change(found) if called in method else found


@pytest.mark.parametrize(
    "change",
    [
        lambda found: [-1, *found[1:]],
        lambda found: [*found[:-1], 64],
        lambda found: [10**30, *found[1:]],
        lambda found: [found[0]] * len(found),
        lambda found: found[:-1],
        lambda found: [*found, 60],
        lambda found: [0, *found[1:]],
        lambda found: [None, *found[1:]],
        lambda found: ["3", *found[1:]],
        lambda found: [3.5, *found[1:]],
        lambda found: None,
    ],
)
@pytest.mark.parametrize("made", [LyingAllocator, LyingRuns])
def test_blocks_that_cannot_be_handed_out_reach_no_table(
    made: type[BlockAllocator], change: Any
) -> None:
    engine = engine_of("block_allocator", made)
    holder = engine.add(ask("A", 9))  # it holds block 0
    engine.step()
    assert holder.live[0].table.blocks[0] == 0
    Switch.wrong = lie("allocate reserve", change)
    group = engine.add(ask("B", 14))
    finish(engine)
    for ended in (holder, group):
        assert (ended.sequences[0].error or "").startswith("block_allocator 'faulty'")
        check_said(engine, ended)
    Switch.wrong = None
    serves_as_ever(engine)


@pytest.mark.parametrize(
    ("method", "block"),
    [
        *(("look_up", block) for block in (-1, 1, 64, None)),
        *(("cache", block) for block in (-1, 5, None)),
    ],
)
def test_a_cached_block_holds_what_was_asked_for_or_cached(method: str, block: Any) -> None:
    engine = engine_of("block_allocator", LyingAllocator)
    engine.add(ask("A"))
    finish(engine)
    Switch.wrong = lie(method, lambda found: block if method == "cache" else [block, *found[1:]])
    group = engine.add(ask("B"))
    finish(engine)
    assert (group.sequences[0].error or "").startswith("block_allocator 'faulty'")
    Switch.wrong = None
    serves_as_ever(engine)


# ---------------------------------------------------------------------- nonsense from executors


class LyingExecutor(PassingExecutor):
    """Changes one result."""

    def __init__(self, inner: Executor, change: Callable[[StepResult], Any]) -> None:
        super().__init__(inner)
        self.change = change
        self.num_collected = 0

    def collect(self, handle: Any, /) -> StepResult:
        self.num_collected += 1
        result = super().collect(handle)
        return self.change(result) if self.num_collected == 2 else result


def _rows(result: StepResult, ids: Any, tokens: Any) -> StepResult:
    return replace(result, sequence_ids=ids, token_ids=tokens)


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize(
    "change",
    [
        lambda r: _rows(r, [SeqId(99), *r.sequence_ids[1:]], r.token_ids),
        lambda r: _rows(r, r.sequence_ids[1:], r.token_ids[1:]),
        lambda r: _rows(r, r.sequence_ids, r.token_ids[1:]),
        lambda r: _rows(r, r.sequence_ids + r.sequence_ids[:1], [*r.token_ids, 1]),
        lambda r: _rows(r, [r.sequence_ids[0]] * len(r.sequence_ids), r.token_ids),
        lambda r: _rows(r, r.sequence_ids, [None for _ in r.token_ids]),
        lambda r: _rows(r, r.sequence_ids, ["1" for _ in r.token_ids]),
        lambda r: _rows(r, r.sequence_ids, [1.5 for _ in r.token_ids]),
        lambda r: _rows(r, r.sequence_ids, [True for _ in r.token_ids]),
        lambda r: _rows(r, r.sequence_ids, [-1 for _ in r.token_ids]),
        lambda r: _rows(r, r.sequence_ids, [1000 for _ in r.token_ids]),
        lambda r: _rows(r, r.sequence_ids, [10**30 for _ in r.token_ids]),
        lambda r: replace(r, failed={SeqId(99): "no"}),
        lambda r: replace(r, candidates={r.sequence_ids[0]: {1: -1.0}}),
        lambda r: replace(r, logprobs=[None]),
        lambda r: replace(r, logprobs=[{} for _ in r.token_ids]),
        lambda r: None,
        lambda r: {"token_ids": [1]},
    ],
)
def test_a_result_that_is_not_what_was_asked_for_fails_its_step(
    change: Callable[[StepResult], Any], ahead: bool
) -> None:
    engine = build_memory_engine(async_scheduling=ahead)
    engine.capacity = replace(engine.capacity, vocab_size=1000)
    honest = engine.executor
    engine.executor = LyingExecutor(honest, change)
    groups = [engine.add(ask(name, length)) for name, length in (("A", 9), ("B", 12))]
    finish(engine)
    engine.executor = honest
    for group in groups:
        assert (group.sequences[0].error or "").startswith("executor 'memory'")
        check_said(engine, group)
    serves_as_ever(engine)


def test_a_beam_without_candidates_fails_its_step() -> None:
    engine = build_memory_engine()
    honest = engine.executor
    engine.executor = LyingExecutor(honest, lambda result: replace(result, candidates={}))
    sampling = SamplingParams(beam_width=2, max_tokens=4)
    group = engine.add(Request(id="A", prompt=(1, 2, 3), sampling=sampling))
    finish(engine)
    engine.executor = honest
    assert "returned no candidates for beam" in (group.sequences[0].error or "")
    serves_as_ever(engine)


# ---------------------------------------------------------------------- nonsense from schedulers


class LyingScheduler(TokenBudgetScheduler):
    """Changes its plans by the switch, a function of the plan."""

    def __init__(self, options: Any, parts: Any, /) -> None:
        super().__init__(TokenBudgetSettings(), parts)

    def schedule(self, now: float, /) -> Schedule:
        plan = super().schedule(now)
        change = Switch.take()
        if change is not None:
            change(plan)
        return plan


def _twice(plan: Schedule) -> None:
    plan.add(plan.sequences[0], 1)


def _in_two_parts(plan: Schedule) -> None:
    whole = plan.num_tokens[0]
    plan.num_tokens[0] = whole - 1
    plan.add(plan.sequences[0], 1)


def _stranger(plan: Schedule) -> None:
    group = SequenceGroup(ask("stranger"), 99, SeqId(99), max_length=20)
    plan.admitted.append((group, 0))
    plan.add(group.live[0], 1)


def _without_blocks(plan: Schedule) -> None:
    group = SequenceGroup(ask("stranger"), 99, SeqId(99), max_length=20)
    plan.add(group.live[0], 1)


def _counts(count: Any) -> Callable[[Schedule], None]:
    def change(plan: Schedule) -> None:
        plan.num_tokens[:] = [count] * len(plan.num_tokens)

    return change


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("steps", [0, 1, 3])
@pytest.mark.parametrize(
    "change",
    [
        *(_counts(count) for count in (0, -1, 2.5, "1", None, 10**6)),
        _twice,
        _in_two_parts,
        _stranger,
        _without_blocks,
        lambda plan: plan.num_tokens.pop(),
        lambda plan: plan.sequences.pop(),
    ],
)
def test_a_plan_that_cannot_be_computed_is_refused(
    change: Callable[[Schedule], None], steps: int, ahead: bool
) -> None:
    engine = engine_of("scheduler", LyingScheduler, async_scheduling=ahead)
    groups = [engine.add(ask(name, length)) for name, length in (("A", 9), ("B", 12))]
    for _ in range(steps):
        engine.step()
    Switch.wrong = change
    finish(engine)
    for group in groups:
        assert (group.sequences[0].error or "").startswith("scheduler 'faulty'")
        check_said(engine, group)
    serves_as_ever(engine)
