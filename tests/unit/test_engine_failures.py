"""The state of the engine after the failure of a request, a step or an observer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NoReturn

import pytest
from structlog.testing import capture_logs

from paged_core.engine.engine import Engine
from paged_core.errors import ExecutorLost
from paged_core.interfaces.executor import Executor
from paged_core.interfaces.observer import Observer
from paged_core.request import FinishReason, Request
from paged_core.sequence import SequenceState, Status
from paged_core.step import NewSequence, StepInput, StepResult
from paged_testing.doubles import FailingExecutor, PassingExecutor
from paged_testing.served import check_nothing_leaked, text_alone
from paged_testing.workloads import simple_request
from unit.engines import Recorder, engine_with, finish, request, run, without_place


class _FailsRequests(PassingExecutor):
    """As an executor whose request's own code raises: it draws nothing for them."""

    def __init__(self, inner: Executor, failing: Callable[[NewSequence, int], bool]) -> None:
        super().__init__(inner)
        self.failing = failing
        self.known: dict[Any, NewSequence] = {}
        self.drawn: dict[Any, int] = {}

    def submit(self, step: StepInput, /) -> Any:
        self.known.update((new.id, new) for new in step.added)
        return super().submit(step)

    def collect(self, handle: Any, /) -> StepResult:
        result = self.inner.collect(handle)
        kept, failed = StepResult(), {}
        for seq_id, token in zip(result.sequence_ids, result.token_ids, strict=True):
            count = self.drawn[seq_id] = self.drawn.get(seq_id, 0) + 1
            if self.failing(self.known[seq_id], count):
                failed[seq_id] = "logits processor failed: ValueError: no"
            else:
                kept.sequence_ids.append(seq_id)
                kept.token_ids.append(token)
        return replace(kept, failed=failed)


class TestFailures:
    def workload(self) -> list[Request]:
        return [simple_request(name, 9, 6) for name in "ABC"]

    def test_a_request_whose_own_code_fails_fails_alone(self) -> None:
        engine = engine_with(block_size=4)
        draw = engine.executor
        engine.executor = _FailsRequests(
            draw, lambda new, count: new.request_id == "B" and count == 3
        )
        with capture_logs() as logs:
            groups = run(engine, *self.workload())
        assert [group.sequences[0].finish_reason for group in groups] == [
            FinishReason.LENGTH,
            FinishReason.ERROR,
            FinishReason.LENGTH,
        ]
        assert groups[1].sequences[0].error == "logits processor failed: ValueError: no"
        assert len(groups[1].sequences[0].output) == 2
        assert any(log["event"] == "request_failed" for log in logs)
        engine.executor = draw
        for group in (groups[0], groups[2]):
            assert group.sequences[0].output == text_alone(engine, group.request)

    @pytest.mark.parametrize("first", [1, 2, 3])
    def test_all_sequences_of_a_request_may_fail_in_one_step(self, first: int) -> None:
        engine = engine_with()
        engine.executor = _FailsRequests(engine.executor, lambda _new, count: count >= first)
        (group,) = run(engine, request(n=3))
        assert {s.finish_reason for s in group.sequences} == {FinishReason.ERROR}

    @pytest.mark.parametrize("at", [4, 5, 6])
    @pytest.mark.parametrize("n", [1, 3])
    def test_a_stop_check_that_raises_fails_its_request_only(self, n: int, at: int) -> None:
        engine = engine_with()

        def check(sequence: SequenceState) -> str | None:
            if len(sequence.tokens) == at and sequence.index == 0:
                raise ValueError("no")
            return None

        bad = engine.add(request("A", n=n, temperature=1.0), check)
        good = engine.add(request("B", (5, 6)))
        finish(engine)
        assert {s.finish_reason for s in bad.sequences} == {FinishReason.ERROR}
        assert without_place(bad.sequences[0].error) == "stop check failed: ValueError: no"
        assert good.sequences[0].output == text_alone(engine, good.request)
        check_nothing_leaked(engine)

    @pytest.mark.parametrize("when", ["before", "after"])
    @pytest.mark.parametrize("scheduler", ["token_budget", "prefill_or_decode"])
    def test_a_step_that_fails_ends_exactly_its_requests(self, scheduler: str, when: str) -> None:
        engine = engine_with(scheduler={"name": scheduler, "max_num_seqs": 2}, block_size=4)
        FailingExecutor.install(engine, **{when: {1}})
        a, b, c = (engine.add(each) for each in self.workload())
        assert engine.step().finished == []
        with capture_logs() as logs:
            assert engine.step().finished == [a, b]
        assert [log["requests"] for log in logs if log["event"] == "step_failed"] == [["A", "B"]]
        for group in (a, b):
            assert group.sequences[0].finish_reason is FinishReason.ERROR
            assert "on" in (group.sequences[0].error or "")
            assert group.status is Status.FINISHED
        assert engine.kv_cache.num_free == engine.kv_cache.num_blocks
        finish(engine)
        assert c.sequences[0].output == text_alone(engine, c.request)
        check_nothing_leaked(engine)

    def test_what_earlier_steps_filled_is_still_found(self) -> None:
        engine = engine_with(block_size=4, scheduler={"max_num_batched_tokens": 8})
        FailingExecutor.install(engine, before={1})
        engine.add(request("A", range(12)))
        engine.step()
        engine.step()
        again = engine.add(request("B", range(12)))
        finish(engine)
        assert again.num_cached == 8
        assert again.sequences[0].output == text_alone(engine, again.request)


class TestObservers:
    def test_hear_of_steps_requests_and_blocks(self) -> None:
        recorder = Recorder()
        engine = engine_with(observers=[recorder], block_size=4)
        run(engine, request(prompt=range(5), max_tokens=2))
        engine.close()
        assert [step.scheduled for step in recorder.steps] == [{"A": 5}, {"A": 1}]
        assert [step.finished for step in recorder.steps] == [[], ["A"]]
        assert recorder.requests == [("A", "added"), ("A", "admitted"), ("A", "finished")]
        assert [event.index for event in recorder.blocks] == [0, 1]
        assert [(event.block, event.key.tokens) for event in recorder.cached if event.key] == [
            (recorder.blocks[0].block, (0, 1, 2, 3))
        ]
        assert recorder.closed

    @pytest.mark.parametrize("method", ["on_step", "on_request", "on_block", "on_cache"])
    def test_who_raises_is_dropped_with_a_warning(self, method: str) -> None:
        class Broken(Recorder):
            pass

        def fail(*_: Any) -> None:
            raise ValueError("no")

        setattr(Broken, method, fail)
        broken, fine = Broken(), Recorder()
        engine = engine_with(observers=[broken, fine])
        with capture_logs() as logs:
            (group,) = run(engine, request(max_tokens=3))
        assert len(group.sequences[0].output) == 3
        dropped = [log for log in logs if log["event"] == "observer_dropped"]
        assert [log["observer"] for log in dropped] == ["Broken"]
        assert without_place(dropped[0]["reason"]) == "ValueError: no"
        assert len(fine.steps) == 3
        engine.close()
        assert fine.closed
        assert not broken.closed

    def test_without_observers_nothing_is_recorded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        engine = engine_with(observers=[Observer()])
        monkeypatch.setattr("paged_core.engine.outcome._step_record", None)
        run(engine, request())


class TestLostExecutors:
    """Effects of a lost executor on an engine; :class:`~paged_core.errors.ExecutorLost`."""

    @staticmethod
    def lose(engine: Engine, monkeypatch: pytest.MonkeyPatch, method: str, *, starts: bool) -> None:
        """Let one call raise, as if the process of the executor had ended."""
        executor = engine.executor

        def lost(_: object) -> NoReturn:
            monkeypatch.undo()
            executor.close()
            if not starts:
                monkeypatch.setattr(
                    executor, "start", lambda: replace(engine.capacity, num_blocks=9)
                )
            raise ExecutorLost("it is gone")

        monkeypatch.setattr(executor, method, lost)

    @pytest.mark.parametrize("method", ["submit", "collect"])
    @pytest.mark.parametrize("is_async", [False, True])
    def test_end_all_requests_and_are_started_again(
        self, method: str, is_async: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        engine = engine_with(scheduler={"max_num_seqs": 1}, async_scheduling=is_async)
        expected = run(engine, request("A", max_tokens=6))[0].sequences[0].output
        groups = [engine.add(request(name, max_tokens=6)) for name in "BC"]
        engine.step()
        self.lose(engine, monkeypatch, method, starts=True)
        finished = []
        while engine.has_unfinished:
            finished += engine.step().finished
        assert finished == groups, "who listens is told"
        for group in groups:
            reason = without_place(group.sequences[0].error)
            assert reason == "executor 'memory' raised ExecutorLost: it is gone"
        (again,) = run(engine, request("D", max_tokens=6))
        assert again.num_cached == 0
        assert again.sequences[0].output == expected

    def test_must_have_the_same_capacity_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        engine = engine_with()
        self.lose(engine, monkeypatch, "collect", starts=False)
        run(engine, request("A"))
        (group,) = run(engine, request("B"))
        assert "num_blocks=9" in (group.sequences[0].error or "")
        monkeypatch.undo()
        (group,) = run(engine, request("C"))
        assert group.sequences[0].error is None
