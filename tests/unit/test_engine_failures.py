"""The state of the engine after the failure of a request, a step or an observer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NoReturn

import pytest
from structlog.testing import capture_logs

from paged_core.engine.engine import Engine
from paged_core.errors import ExecutorLost
from paged_core.interfaces.executor import Capacity, Executor
from paged_core.interfaces.observer import BlockEvent, Observer, StepRecord
from paged_core.request import FinishReason, Request
from paged_core.sampling_params import SamplingParams
from paged_core.sequence import SequenceGroup, SequenceState, Status
from paged_core.step import NewSequence, StepInput, StepResult
from paged_testing.doubles import FailingExecutor
from paged_testing.engines import build_memory_engine, serve
from paged_testing.served import check_nothing_leaked, text_alone
from paged_testing.workloads import Workload, simple_request
from unit.engines import engine_with, finish, request, run


class _FailsRequests(Executor):
    """As an executor whose request's own code raises: it draws nothing for them."""

    def __init__(self, inner: Executor, failing: Callable[[NewSequence, int], bool]) -> None:
        self.inner = inner
        self.failing = failing
        self.known: dict[Any, NewSequence] = {}
        self.drawn: dict[Any, int] = {}

    def start(self) -> Capacity:
        raise NotImplementedError

    def submit(self, step: StepInput, /) -> Any:
        self.known.update((new.id, new) for new in step.added)
        return self.inner.submit(step)

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

    def close(self) -> None:
        self.inner.close()


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
        assert bad.sequences[0].error == "stop check failed: ValueError: no"
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

    @pytest.mark.parametrize("when", ["before", "after"])
    def test_blocks_of_a_failed_step_are_not_found(self, when: str) -> None:
        engine = engine_with(block_size=4)
        FailingExecutor.install(engine, **{when: {0}})
        engine.add(request("A", range(12)))
        engine.step()
        again = engine.add(request("B", range(12)))
        finish(engine)
        assert again.num_cached == 0
        assert again.sequences[0].output == text_alone(engine, again.request)

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

    def test_who_is_swapped_out_by_a_failed_step_ends_with_it(self) -> None:
        engine = engine_with(num_blocks=4, block_size=4, num_host_blocks=8, preemption="swap")
        groups = [engine.add(request(str(i), [i] * 7)) for i in range(2)]
        failing = FailingExecutor.install(engine, before=range(2, 100))
        while all(group.live for group in groups):
            failing._before = frozenset(
                {failing.num_submitted} if len(groups[0].live[0].tokens) > 8 else ()
            )
            engine.step()
        assert {group.sequences[0].finish_reason for group in groups} == {FinishReason.ERROR}
        check_nothing_leaked(engine)

    def test_a_swapped_group_that_is_given_up_in_a_step_that_fails(self) -> None:
        values: dict[str, Any] = {
            "block_allocator": "uncached",
            "queue_order": "priority",
            "scheduler": {"name": "prefill_or_decode", "max_num_seqs": 3},
            "preemption": "swap",
            "block_size": 1,
            "num_blocks": 7,
            "num_host_blocks": 30,
        }
        for number in range(12):
            engine = build_memory_engine(**values)
            FailingExecutor.install(engine, before={number})
            urgent = Request(id="C", prompt=(0,), sampling=SamplingParams(n=3, max_tokens=1))
            workload = Workload(
                (
                    (0, simple_request("B", (0, 0, 0), 6, priority=1)),
                    (0, urgent),
                    (1, simple_request("A", (0,), 1)),
                )
            )
            serve(engine, workload)
            check_nothing_leaked(engine)

    def test_ctrl_c_leaves_the_engine_whole(self) -> None:
        engine = engine_with()

        def interrupt(*_: Any) -> int:
            raise KeyboardInterrupt

        draw = engine.executor.sample  # type: ignore[attr-defined]
        engine.executor.sample = interrupt  # type: ignore[attr-defined]
        engine.add(request("A"))
        with pytest.raises(KeyboardInterrupt):
            engine.step()
        check_nothing_leaked(engine)
        engine.executor.sample = draw  # type: ignore[attr-defined]
        run(engine, request("A"))


class _Recorder(Observer):
    def __init__(self) -> None:
        self.steps: list[StepRecord] = []
        self.requests: list[tuple[str, str]] = []
        self.blocks: list[BlockEvent] = []
        self.closed = False

    def on_step(self, step: StepRecord, /) -> None:
        self.steps.append(step)

    def on_request(self, group: SequenceGroup, event: str, /) -> None:
        self.requests.append((group.id, event))

    def on_block(self, event: BlockEvent, /) -> None:
        self.blocks.append(event)

    def close(self) -> None:
        self.closed = True


class TestObservers:
    def test_hear_of_steps_requests_and_blocks(self) -> None:
        recorder = _Recorder()
        engine = engine_with(observers=[recorder], block_size=4)
        run(engine, request(prompt=range(5), max_tokens=2))
        engine.close()
        assert [step.scheduled for step in recorder.steps] == [{"A": 5}, {"A": 1}]
        assert [step.finished for step in recorder.steps] == [[], ["A"]]
        assert recorder.requests == [("A", "added"), ("A", "admitted"), ("A", "finished")]
        assert [event.index for event in recorder.blocks] == [0, 1]
        assert recorder.closed

    @pytest.mark.parametrize("method", ["on_step", "on_request", "on_block"])
    def test_who_raises_is_dropped_with_a_warning(self, method: str) -> None:
        class Broken(_Recorder):
            pass

        def fail(*_: Any) -> None:
            raise ValueError("no")

        setattr(Broken, method, fail)
        broken, fine = Broken(), _Recorder()
        engine = engine_with(observers=[broken, fine])
        with capture_logs() as logs:
            (group,) = run(engine, request(max_tokens=3))
        assert len(group.sequences[0].output) == 3
        dropped = [log for log in logs if log["event"] == "observer_dropped"]
        assert [log["observer"] for log in dropped] == ["Broken"]
        assert dropped[0]["reason"] == "ValueError: no"
        assert len(fine.steps) == 3
        engine.close()
        assert fine.closed
        assert not broken.closed

    def test_without_observers_nothing_is_recorded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        engine = engine_with(observers=[Observer()])
        monkeypatch.setattr("paged_core.engine.recorder._step_record", None)
        run(engine, request())


class TestLostExecutors:
    """What a lost executor does to an engine; :class:`~paged_core.errors.ExecutorLost`."""

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
        finish(engine)
        for group in groups:
            reason = group.sequences[0].error or ""
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
