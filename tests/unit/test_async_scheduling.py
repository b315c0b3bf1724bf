"""A step is planned while the one before it runs: what is counted, what waits, what is dropped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from paged_backends.executors.memory import MemoryExecutor
from paged_core.engine.engine import Engine
from paged_core.errors import RequestError
from paged_core.ids import SeqId
from paged_core.interfaces.scheduler import Schedule, Scheduler
from paged_core.request import FinishReason
from paged_core.sequence import Status
from paged_core.step import NewSequence, StepInput, StepResult
from paged_testing.doubles import BackgroundExecutor, WatchedScheduler
from paged_testing.engines import build_memory_engine
from paged_testing.served import check_nothing_leaked, check_said, text_alone
from unit.engines import EOS, engine_with, finish, request


class Watched(BackgroundExecutor):
    """Records the calls of it, in order."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.events: list[tuple[str, int]] = []
        self.steps: list[StepInput] = []

    def submit(self, step: StepInput, /) -> int:
        self.events.append(("submit", step.number))
        self.steps.append(step)
        return super().submit(step)

    def collect(self, handle: Any, /) -> StepResult:
        self.events.append(("collect", self.steps[handle].number))
        return super().collect(handle)


def async_engine(**values: Any) -> tuple[Engine, Watched]:
    engine = engine_with(async_scheduling=True, **values)
    executor = Watched.install(engine)
    assert isinstance(executor, Watched)
    return engine, executor


def test_the_next_step_is_submitted_before_a_result_is_collected() -> None:
    engine, executor = async_engine()
    group = engine.add(request(max_tokens=4))
    finish(engine)
    assert executor.events == [
        *(("submit", 0), ("submit", 1), ("collect", 0), ("submit", 2), ("collect", 1)),
        *(("submit", 3), ("collect", 2), ("collect", 3)),
    ]
    assert group.sequences[0].output == text_alone(engine, group.request)
    check_nothing_leaked(engine)


def test_a_stop_token_is_found_one_step_late() -> None:
    engine, executor = async_engine(
        capacity={"eos_token_ids": frozenset({EOS})}, text=[1, 2, EOS, 3, 4], block_size=4
    )
    stopping = engine.add(request(max_tokens=9))
    longer = engine.add(request("B", (5, 6), max_tokens=9, ignore_eos=True))
    finish(engine)
    assert stopping.sequences[0].output == [1, 2, EOS]
    assert stopping.sequences[0].finish_reason is FinishReason.STOP
    assert longer.sequences[0].output == [1, 2, EOS, 3, 4, 1, 2, EOS, 3]
    batches = [len(step.sequence_ids) for step in executor.steps]
    assert batches == [2, 2, 2, 2, 1, 1, 1, 1, 1], "the fourth step computes a token too many"
    check_nothing_leaked(engine)


@pytest.mark.parametrize("sampling", [{"n": 3, "temperature": 1.0}, {"beam_width": 2}])
def test_requests_that_fork_wait_for_their_result(sampling: dict[str, Any]) -> None:
    engine, executor = async_engine()
    group = engine.add(request(max_tokens=3, **sampling))
    engine.step()
    assert group.live[0].num_pending == 0
    engine.step()
    assert len(executor.steps) == 1, "nothing could be planned, so the result was waited for"
    finish(engine)
    check_said(engine, group)
    check_nothing_leaked(engine)


@pytest.mark.parametrize(
    ("in_background", "setting", "ahead"),
    [(False, "auto", False), (False, True, True), (True, "auto", True), (True, False, False)],
)
def test_auto_follows_the_executor(
    in_background: bool, setting: Any, ahead: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which says whether it runs steps in the background; this one does not."""
    monkeypatch.setattr(MemoryExecutor, "runs_in_background", in_background)
    engine = build_memory_engine(async_scheduling=setting)
    group = engine.add(request(max_tokens=3))
    assert bool(engine.step().advanced) is not ahead
    finish(engine)
    assert group.finished


def test_an_id_may_be_used_again_while_the_aborted_request_is_in_flight() -> None:
    engine, _ = async_engine()
    engine.add(request("A", (4, 5)))
    engine.step()
    engine.abort("A")
    again = engine.add(request("A", (7, 8, 9)))
    with pytest.raises(RequestError, match="being served"):
        engine.add(request("A"))
    finish(engine)
    assert again.sequences[0].output == text_alone(engine, again.request)


def test_closing_waits_for_the_step_in_flight() -> None:
    engine, executor = async_engine()
    engine.add(request())
    engine.step()
    engine.close()
    assert executor.events == [("submit", 0), ("collect", 0)]


@pytest.mark.parametrize("scheduler", ["token_budget", "prefill_or_decode"])
def test_a_group_that_waits_for_a_step_is_no_victim(scheduler: str) -> None:
    """All blocks are held, and A needs another one for its next token."""
    engine = engine_with(scheduler=scheduler, num_blocks=4, block_size=4)
    first, second = (engine.add(request(n, [ord(n)] * 8, n=1 + (n == "B"))) for n in "AB")
    engine.step()
    assert first.live[0].num_pending == 1
    assert engine.kv_cache.num_free == 0
    waiting = list(second.live)
    for sequence in waiting:
        sequence.num_scheduled = sequence.num_tokens
    plan = engine.scheduler.schedule(1.0)
    assert not (plan.sequences or plan.preempted or plan.ignored)
    for sequence in waiting:
        sequence.num_scheduled = sequence.num_computed
    finish(engine)
    check_nothing_leaked(engine)


class Restless(WatchedScheduler):
    """Preempts what runs and admits it again in the same plan, every third step."""

    def __init__(self, inner: Scheduler, engine: Engine) -> None:
        super().__init__(inner, engine.kv_cache, None, None)
        self.engine = engine
        self.num_restarts = 0

    def schedule(self, now: float, /) -> Schedule:
        queues = self.inner.queues()
        if int(now) % 3 != 2 or not queues.running:
            return self.inner.schedule(now)
        plan, kv_cache = Schedule(), self.engine.kv_cache
        for group in queues.running:
            kv_cache.release_group(group)
            plan.preempted.append(group)
            plan.admitted.append((group, 0))
            for sequence in group.live:
                kv_cache.admit(sequence, sequence.num_tokens)
                plan.sequences.append(sequence)
                plan.num_tokens.append(sequence.num_tokens)
            group.status = Status.RUNNING
            self.num_restarts += 1
        return plan


@pytest.mark.parametrize("sampling", [{}, {"n": 2, "temperature": 1.0}])
def test_a_sequence_that_starts_again_at_once_waits_for_its_tokens(
    sampling: dict[str, Any],
) -> None:
    engine, _ = async_engine(text=[1, 2, 3, 4, 5], block_allocator="uncached")
    restless = engine.scheduler = Restless(engine.scheduler, engine)
    groups = [
        engine.add(request(name, (1, 2, 3), max_tokens=count, **sampling))
        for name, count in {"A": 9, "B": 2, "C": 5}.items()
    ]
    finish(engine)
    assert restless.num_restarts > 3
    for group in groups:
        for sequence in group.sequences:
            assert sequence.output == ([1, 2, 3, 4, 5] * 2)[: group.request.sampling.max_tokens]
    check_nothing_leaked(engine)


@pytest.mark.parametrize("scheduler", ["token_budget", "prefill_or_decode"])
@pytest.mark.parametrize("stop_at", [3, None])
def test_a_request_that_fills_the_cache_keeps_the_token_in_flight(
    scheduler: str, stop_at: int | None
) -> None:
    """Whatever that token brings: a stop, or the end for want of blocks."""
    ended = []
    for is_async in (False, True):
        engine = engine_with(
            capacity={"eos_token_ids": frozenset({EOS})},
            text=[1, 2, EOS] if stop_at else [1, 2, 3, 4],
            block_size=1,
            num_blocks=9,
            max_model_len=40,
            scheduler=scheduler,
            async_scheduling=is_async,
        )
        BackgroundExecutor.install(engine)
        group = engine.add(request("A", (1, 2, 3), n=2, temperature=1.0, max_tokens=20))
        finished = []
        while engine.has_unfinished:
            finished += engine.step().finished
        assert finished == [group]
        check_nothing_leaked(engine)
        ended.append([(s.output, s.finish_reason, s.error) for s in group.sequences])
    assert ended[0] == ended[1]
    assert all((reason is FinishReason.STOP) is bool(stop_at) for _, reason, _ in ended[0])


class PromptReporter(BackgroundExecutor):
    """Reports the log-probability of every prompt token of a chunk: minus its place."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self._chunks: dict[int, list[tuple[SeqId, int, int]]] = {}
        self._known: dict[SeqId, tuple[int, list[int], int]] = {}

    def submit(self, step: StepInput, /) -> int:
        for new in step.added:
            self._known[new.id] = (new.num_computed, new.tokens, new.num_prompt_tokens)
        chunks = []
        for seq_id, count in zip(step.sequence_ids, step.num_tokens, strict=True):
            start, tokens, num_prompt = self._known[seq_id]
            chunks.append((seq_id, start, min(start + count, num_prompt - 1)))
            self._known[seq_id] = (start + count, tokens, num_prompt)
        handle = super().submit(step)
        self._chunks[handle] = chunks
        return handle

    def collect(self, handle: Any, /) -> StepResult:
        reported = {
            seq_id: [{self._known[seq_id][1][at + 1]: -float(at + 1)} for at in range(start, end)]
            for seq_id, start, end in self._chunks.pop(handle)
            if start < end
        }
        return replace(super().collect(handle), prompt_logprobs=reported)


@pytest.mark.parametrize("seed", range(12))
def test_prompt_log_probabilities_are_there_whatever_is_preempted(seed: int) -> None:
    """Also where a request that is preempted in flight ends with the token of that step."""
    random = Random(seed)
    budget = {"max_num_batched_tokens": 6, "max_num_seqs": 4, "reserve_full_sequence": False}
    engine = engine_with(
        scheduler={"name": "token_budget", **budget},
        block_size=2,
        num_blocks=12,
        async_scheduling=True,
    )
    PromptReporter.install(engine)
    groups = []
    for number in range(8):
        prompt = [random.randrange(9) for _ in range(random.randint(2, 10))]
        asked = request(f"{number}", prompt, max_tokens=random.choice((1, 12)), prompt_logprobs=0)
        groups.append(engine.add(asked))
        engine.step()
    finish(engine)
    for group in groups:
        expected = [{token: -float(at)} for at, token in enumerate(group.request.prompt)]
        assert group.prompt_logprobs == [None, *expected[1:]], group.id


def test_a_sequence_that_grew_and_ended_ahead_of_its_step_ends_alone() -> None:
    """Its copy was to be sent again, with an entry of its table, when its last token was known."""
    engine = engine_with(block_size=4, kv_cache=False, async_scheduling=True)

    def sample(sequence: NewSequence, tokens: Sequence[int], index: int) -> int:
        return 7 if sequence.request_id == "A" and len(tokens) == 8 else 1

    engine.executor.sample = sample  # type: ignore[attr-defined]
    first = engine.add(request("A", max_tokens=20, stop_token_ids=(7,)))
    second = engine.add(request("B", max_tokens=20))
    while engine.has_unfinished:
        engine.step()
    ends = [group.sequences[0].finish_reason for group in (first, second)]
    assert ends == [FinishReason.STOP, FinishReason.LENGTH]
