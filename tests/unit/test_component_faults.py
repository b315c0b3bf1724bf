"""Components that raise or answer nonsense: the error names them, and the engine serves on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from paged_backends.executors.memory import MemoryExecutor
from paged_core import LLM
from paged_core.checked.answers import check_capacity
from paged_core.engine.engine import Engine
from paged_core.errors import PluginError
from paged_core.ids import BlockId, SeqId
from paged_core.interfaces.executor import Executor
from paged_core.interfaces.scheduler import Schedule
from paged_core.plugins.component import ComponentSettings
from paged_core.request import FinishReason, Request
from paged_core.requests.pins import PinState
from paged_core.sampling_params import SamplingParams
from paged_core.sequence import SequenceGroup
from paged_core.step import StepResult
from paged_policies.allocators.contiguous import ContiguousAllocator
from paged_policies.allocators.hash_cached import HashCachedAllocator
from paged_policies.evictors.lru import LruEvictor
from paged_policies.orders.fcfs import FcfsOrder
from paged_policies.preemption.modes import RecomputePreemption
from paged_policies.schedulers.token_budget import TokenBudgetScheduler
from paged_policies.victims.newest import NewestVictim
from paged_testing import build_memory_engine
from paged_testing.doubles import PassingExecutor
from paged_testing.served import check_nothing_leaked, check_said
from unit.engines import Recorder, finish, without_place
from unit.faulty_attention import FlatRowsAttention, WideAttention
from unit.faulty_settings import (
    FaultyContiguousSettings,
    FaultyHashCachedSettings,
    FaultySettings,
    FaultyTokenBudgetSettings,
    registry_of,
)

OPTIONS: dict[type, type[ComponentSettings]] = {
    HashCachedAllocator: FaultyHashCachedSettings,
    ContiguousAllocator: FaultyContiguousSettings,
    TokenBudgetScheduler: FaultyTokenBudgetSettings,
}


class Switch:
    """Fault of a component; ``None``: none."""

    wrong: Any = None

    @classmethod
    def take(cls) -> Any:
        wrong, cls.wrong = cls.wrong, None
        return wrong


@pytest.fixture(autouse=True)
def _switched_off() -> Iterator[None]:
    Switch.wrong = None
    yield
    Switch.wrong = None


def ask(name: str, length: int = 12, **fields: Any) -> Request:
    prompt = tuple(range(100, 100 + length))
    return Request(id=name, prompt=prompt, sampling=SamplingParams(max_tokens=6), **fields)


def engine_of(slot: str, made: type, **values: Any) -> Engine:
    """Build an engine with the class as its component of ``slot``, named ``faulty``."""
    settings = next((OPTIONS[base] for base in made.__mro__ if base in OPTIONS), FaultySettings)
    return build_memory_engine(registry_of(slot, made, settings), **{slot: "faulty"}, **values)


def serves_as_ever(engine: Engine) -> None:
    """Ask for the usual prompts: they have their own text, and no block leaks."""
    Switch.wrong = None
    groups = [engine.add(ask(f"again {length}", length)) for length in (12, 9)]
    finish(engine)
    for group in groups:
        assert group.sequences[0].finish_reason is FinishReason.LENGTH, group.sequences[0].error
        check_said(engine, group)
    check_nothing_leaked(engine)


def errors_of(*groups: SequenceGroup) -> list[str]:
    return [group.sequences[0].error or "" for group in groups]


# ---------------------------------------------------------------------- answers


def lying(base: type, *methods: str) -> type:
    """Return a subclass whose methods change their answers by the switch: a method, a function."""

    def lies(name: str) -> Callable[..., Any]:
        def answer(self: Any, *args: Any) -> Any:
            found = getattr(base, name)(self, *args)
            return Switch.wrong[1](found) if Switch.wrong and Switch.wrong[0] == name else found

        return answer

    members = {"__module__": __name__, **{name: lies(name) for name in methods}}
    return type(f"Lying{base.__name__}", (base,), members)


LyingHashCachedAllocator = lying(HashCachedAllocator, "allocate", "look_up", "cache")
LyingContiguousAllocator = lying(ContiguousAllocator, "reserve")
LyingLruEvictor = lying(LruEvictor, "evict")
LyingNewestVictim = lying(NewestVictim, "choose")
LyingRecomputePreemption = lying(RecomputePreemption, "mode", "tokens_to_reserve")
LyingTokenBudgetScheduler = lying(TokenBudgetScheduler, "schedule")


def always(answer: Any) -> Callable[[Any], Any]:
    return lambda found: answer


BLOCKS: list[Callable[[Any], Any]] = [
    lambda found: [-1, *found[1:]],
    lambda found: [*found[:-1], 64],
    lambda found: [10**30, *found[1:]],
    lambda found: [found[0]] * len(found),
    lambda found: found[:-1],
    lambda found: [*found, 5],
    lambda found: [0, *found[1:]],
    lambda found: [None, *found[1:]],
    lambda found: ["3", *found[1:]],
    lambda found: [3.5, *found[1:]],
    lambda found: None,
]
"""Blocks that cannot be handed out; 0 is in use."""
LIES: list[tuple[str, type, str, Callable[[Any], Any]]] = [
    *(("block_allocator", LyingHashCachedAllocator, "allocate", each) for each in BLOCKS),
    *(("block_allocator", LyingContiguousAllocator, "reserve", each) for each in BLOCKS[:7]),
    *(
        ("block_allocator", LyingHashCachedAllocator, "look_up", lambda f, b=b: [b, *f[1:]])
        for b in (-1, 1, 64, None)
    ),
    *(
        ("block_allocator", LyingHashCachedAllocator, "cache", always(block))
        for block in (-1, 5, None)
    ),
    *(("evictor", LyingLruEvictor, "evict", always(block)) for block in (999, -1, "2", True, 0)),
    *(("victim", LyingNewestVictim, "choose", always(group)) for group in (None, 0)),
    *(("preemption", LyingRecomputePreemption, "mode", always(x)) for x in ("swap", None, 1)),
    ("scheduler", LyingTokenBudgetScheduler, "schedule", always(None)),
]


@pytest.mark.parametrize(("slot", "made", "method", "change"), LIES)
def test_an_answer_that_cannot_be_acted_on_names_its_component(
    slot: str, made: type, method: str, change: Callable[[Any], Any]
) -> None:
    """A holds block 0 and cached blocks; B shares them, and both outgrow the pool."""
    runs = made is LyingContiguousAllocator
    engine = engine_of(slot, made, num_blocks=20 if runs else 6, max_model_len=24)
    if slot == "evictor":  # leave no block that holds nothing
        engine.add(Request(id="earlier", prompt=tuple(range(18))))
        finish(engine)
    first = engine.add(ask("A", 9))
    engine.step()
    assert slot == "evictor" or first.live[0].table.blocks[0] == 0
    Switch.wrong = method, change
    second = engine.add(ask("B", 14))
    finish(engine)
    name = "evictor LyingLruEvictor: evict()" if slot == "evictor" else f"{slot} 'faulty'"
    assert any(name in error for error in errors_of(first, second)), errors_of(first, second)
    for group in (first, second):
        check_said(engine, group)
    serves_as_ever(engine)


@pytest.mark.parametrize("answer", [-5, 3, "x", True, 1.5])
def test_a_reservation_that_cannot_be_names_the_preemption(answer: Any) -> None:
    engine = engine_of("preemption", LyingRecomputePreemption)
    Switch.wrong = "tokens_to_reserve", always(answer)
    with capture_logs() as logs, pytest.raises(PluginError, match="preemption 'faulty': tokens_to"):
        engine.add(ask("A"))
    assert [log["event"] for log in logs if "stack" in log] == ["request_not_added"]
    serves_as_ever(engine)


class Capped(TokenBudgetScheduler):
    length_cap: Any = None


@pytest.mark.parametrize("cap", [0, -1, None, 1.5])
def test_a_length_that_no_sequence_can_have_names_the_scheduler(
    cap: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Capped, "length_cap", cap)
    engine = engine_of("scheduler", Capped)
    for add in (engine.add, engine.offer):
        with pytest.raises(PluginError, match=f"scheduler Capped: its length_cap is {cap}; it"):
            add(ask("A"))
    assert not engine.has_unfinished


@pytest.mark.parametrize(
    "claims",
    [{"num_blocks": 0}, {"num_blocks": 10**12}, {"num_host_blocks": -1}, {"max_model_len": 0}],
)
def test_an_executor_that_can_hold_nothing_or_anything_is_refused(claims: dict[str, int]) -> None:
    capacity = replace(build_memory_engine().capacity, **claims)
    with pytest.raises(PluginError, match=next(iter(claims))):
        check_capacity(capacity)


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


RESULTS: list[Callable[[StepResult], Any]] = [
    lambda r: _rows(r, [SeqId(99), *r.sequence_ids[1:]], r.token_ids),
    lambda r: _rows(r, r.sequence_ids[1:], r.token_ids[1:]),
    lambda r: _rows(r, r.sequence_ids, r.token_ids[1:]),
    lambda r: _rows(r, r.sequence_ids + r.sequence_ids[:1], [*r.token_ids, 1]),
    lambda r: _rows(r, [r.sequence_ids[0]] * len(r.sequence_ids), r.token_ids),
    *(
        lambda r, token=token: _rows(r, r.sequence_ids, [token] * len(r.token_ids))
        for token in (None, "1", 1.5, True, -1, 1000, 10**30)
    ),
    lambda r: replace(r, failed={SeqId(99): "no"}),
    lambda r: replace(r, candidates={r.sequence_ids[0]: {1: -1.0}}),
    lambda r: replace(r, logprobs=[None]),
    lambda r: replace(r, logprobs=[{} for _ in r.token_ids]),
    lambda r: None,
    lambda r: {"token_ids": [1]},
]


@pytest.mark.parametrize("number", range(len(RESULTS)))
def test_a_result_that_is_not_what_was_asked_for_fails_its_step(number: int) -> None:
    engine = build_memory_engine(async_scheduling=bool(number % 2))
    engine.capacity = replace(engine.capacity, vocab_size=1000)
    honest = engine.executor
    engine.executor = LyingExecutor(honest, RESULTS[number])
    groups = [engine.add(ask(name, length)) for name, length in (("A", 9), ("B", 12))]
    finish(engine)
    engine.executor = honest
    for group in groups:
        assert (group.sequences[0].error or "").startswith("executor 'memory'")
        check_said(engine, group)
    serves_as_ever(engine)


def _stranger() -> SequenceGroup:
    return SequenceGroup(ask("stranger"), 99, SeqId(99), max_length=20)


def _counts(count: Any) -> Callable[[Schedule], None]:
    def change(plan: Schedule) -> None:
        plan.num_tokens[:] = [count] * len(plan.num_tokens)

    return change


def _in_two_parts(plan: Schedule) -> None:
    plan.num_tokens[0] -= 1
    plan.add(plan.sequences[0], 1)


PLANS: list[Callable[[Schedule], Any]] = [
    *(_counts(count) for count in (0, -1, 2.5, "1", None, 10**6)),
    lambda plan: plan.add(plan.sequences[0], 1),
    _in_two_parts,
    lambda plan: plan.admitted.append((_stranger(), 0)),
    lambda plan: plan.add(_stranger().live[0], 1),
    lambda plan: plan.num_tokens.pop(),
    lambda plan: plan.sequences.pop(),
]


@pytest.mark.parametrize("steps", [0, 1, 3])
@pytest.mark.parametrize("number", range(len(PLANS)))
def test_a_plan_that_cannot_be_computed_is_refused(number: int, steps: int) -> None:
    ahead = bool((number + steps) % 2)
    engine = engine_of("scheduler", LyingTokenBudgetScheduler, async_scheduling=ahead)
    groups = [engine.add(ask(name, length)) for name, length in (("A", 9), ("B", 12))]
    for _ in range(steps):
        engine.step()

    def once(plan: Schedule) -> Schedule:
        Switch.wrong = None
        PLANS[number](plan)
        return plan

    Switch.wrong = "schedule", once
    finish(engine)
    for group in groups:
        assert (group.sequences[0].error or "").startswith("scheduler 'faulty'")
        check_said(engine, group)
    serves_as_ever(engine)


# ---------------------------------------------------------------------- errors


class Lost(HashCachedAllocator):
    """Raises an error without words, two calls deep in code of its own."""

    def allocate(self, count: int, /) -> list[BlockId]:
        if Switch.take():
            self._pick()
        return super().allocate(count)

    def _pick(self) -> None:
        next(iter(()))


def test_where_a_component_raised_is_in_the_error_and_the_traceback_in_the_log() -> None:
    engine = engine_of("block_allocator", Lost)
    group = engine.add(ask("A"))
    Switch.wrong = True
    with capture_logs() as logs:
        finish(engine)
    called, raised = (each.__code__.co_firstlineno for each in (Lost.allocate, Lost._pick))
    assert group.sequences[0].error == (
        f"block_allocator 'faulty' raised StopIteration (at {__file__}:{called + 2} in allocate > "
        f"{__file__}:{raised + 1} in _pick)"
    )
    (log,) = (log for log in logs if "stack" in log)
    assert (log["event"], log["log_level"]) == ("policies_restarted", "error")
    assert "in _step" in log["stack"]
    assert log["stack"].endswith("next(iter(()))\nStopIteration")


def test_a_traceback_is_logged_once() -> None:
    engine = engine_of("scheduler", LyingTokenBudgetScheduler)
    Switch.wrong = "schedule", always(None)
    with capture_logs() as logs:
        for name in "ABC":
            group = engine.add(ask(name))
            engine.step()
            assert errors_of(group) == [
                "scheduler 'faulty': schedule() returned None; it has to return a Schedule"
            ]
    restarted = [log for log in logs if log["event"] == "policies_restarted"]
    assert [log["stack"] is None for log in restarted] == [False, True, True]


class RaisingFree(HashCachedAllocator):
    def free(self, blocks: Any, /) -> None:
        if Switch.take():
            raise ValueError("no")
        super().free(blocks)


REASON = "block_allocator 'faulty' raised ValueError: no"


def test_all_requests_and_pins_of_an_engine_that_starts_anew_end_with_the_reason() -> None:
    engine = engine_of("block_allocator", RaisingFree)
    pin = engine.pin(range(12))
    finish(engine)
    groups = [engine.add(ask("A", 9)), engine.add(ask("B", 12))]
    engine.step()
    Switch.wrong = True
    engine.abort("A")
    ends = [group.sequences[0].finish_reason for group in groups]
    assert ends == [FinishReason.ABORT, FinishReason.ERROR]
    assert without_place(groups[1].sequences[0].error) == REASON
    assert (pin.state, pin.blocks) == (PinState.ENDED, [])
    assert without_place(pin.end_reason) == REASON
    assert engine.step().finished == groups
    again = engine.add(ask("C"))
    finish(engine)
    assert again.num_cached == 0
    serves_as_ever(engine)


class Unmakeable(RaisingFree):
    def __init__(self, *args: Any) -> None:
        if Switch.wrong:
            raise OSError("no such file")
        super().__init__(*args)

    def allocate(self, count: int, /) -> list[BlockId]:
        if Switch.wrong:
            raise ValueError("no")
        return super().allocate(count)


def test_an_engine_whose_policies_cannot_be_made_anew_refuses_until_they_can() -> None:
    engine = engine_of("block_allocator", Unmakeable)
    group = engine.add(ask("A"))
    Switch.wrong = True
    for call in (engine.step, engine.step, lambda: engine.add(ask("B"))):
        with pytest.raises(OSError, match="no such file"):
            call()
    assert without_place(group.sequences[0].error) == REASON
    serves_as_ever(engine)
    engine.close()


class RaisingKey(FcfsOrder):
    def key(self, group: SequenceGroup, now: float, /) -> Any:
        if Switch.wrong == group.request.tenant:
            raise ValueError("no")
        return group.request.deadline or super().key(group, now)


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("tenant", "poison", "queue_order 'faulty' raised ValueError: no"),
        (
            "deadline",
            "soon",
            "queue_order 'faulty': key.. returned what cannot be compared: '<' not supported",
        ),
    ],
)
def test_a_request_that_cannot_be_queued_is_not_added(field: str, value: str, reason: str) -> None:
    Switch.wrong = "poison"
    engine = engine_of("queue_order", RaisingKey)
    engine.add(ask("A", deadline=5.0))
    bad = ask("B")
    object.__setattr__(bad, field, value)
    with pytest.raises(PluginError, match=f"request 'B' was not added: .*{reason}"):
        engine.add(bad)
    assert [group.id for group in engine.groups] == ["A"]
    assert len(engine.scheduler) == 1
    engine.add(ask("B"))
    finish(engine)
    serves_as_ever(engine)


class StubbornExecutor(PassingExecutor):
    """Passes on, and cannot be closed or collected."""

    def collect(self, handle: Any, /) -> StepResult:
        raise ValueError("lost")

    def close(self) -> None:
        super().close()
        raise OSError("busy")


def test_closing_closes_everything_and_then_raises() -> None:
    observer = Recorder()
    engine = build_memory_engine(observers=[observer], async_scheduling=True)
    engine.add(ask("A"))
    engine.executor = StubbornExecutor(engine.executor)
    engine.step()
    with pytest.raises(OSError, match="busy"):
        engine.close()
    assert observer.closed
    assert not list(engine.groups)


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


class BadStart(MemoryExecutor):
    def start(self) -> Any:
        return self.no_such_thing  # type: ignore[attr-defined]


def test_an_error_of_an_executor_at_its_start_names_it() -> None:
    registry = registry_of("executor", BadStart)
    with pytest.raises(PluginError, match=r"executor 'faulty'.* could not be started: .*BadStart"):
        LLM(executor="faulty", registry=registry)


@pytest.mark.parametrize("runner", ["native", "transformers"])
@pytest.mark.parametrize(
    ("made", "said"), [(WideAttention, "float32"), (FlatRowsAttention, "12, 192")]
)
def test_attention_that_returns_something_else_is_named(runner: str, made: type, said: str) -> None:
    engine = build_memory_engine(
        registry_of("attention", made),
        **{"executor": "local", "model": "demo", "runner": runner, "dtype": "bfloat16"},
        attention="faulty",
    )
    group = engine.add(ask("A"))
    finish(engine)
    (error,) = errors_of(group)
    assert error.startswith("attention 'faulty': forward() returned")
    assert said in error
    engine.close()
