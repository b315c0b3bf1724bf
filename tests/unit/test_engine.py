"""The front door, the ways in which a request ends, and what is left when something fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from paged_core.engine import Engine
from paged_core.errors import RequestError
from paged_core.interfaces.executor import Capacity, Executor
from paged_core.interfaces.observer import BlockEvent, Observer, StepRecord
from paged_core.request import FinishReason, Request, SamplingParams
from paged_core.sequence import SequenceGroup, SequenceState, Status
from paged_core.step import NewSequence, StepInput, StepResult
from paged_core.testing.failing_executor import FailingExecutor
from paged_core.testing.memory_engine import build_memory_engine, serve
from paged_core.testing.text_alone import check_nothing_leaked, text_alone
from paged_core.testing.workload import Workload, simple_request

EOS = 7


def engine_with(
    capacity: dict[str, Any] | None = None,
    text: Sequence[int] | None = None,
    observers: Sequence[Observer] = (),
    **settings: Any,
) -> Engine:
    """An engine that says ``text`` to everyone, if it is given, the first token after a prompt
    first; ``capacity`` is what its executor says of itself."""
    engine = build_memory_engine(observers=observers, **settings)
    engine.capacity = replace(engine.capacity, **(capacity or {}))
    if text is not None:

        def draw(sequence: NewSequence, tokens: Sequence[int], index: int) -> int:
            return text[(len(tokens) - sequence.num_prompt_tokens) % len(text)]

        engine.executor.draw = draw  # type: ignore[attr-defined]
    return engine


def request(name: str = "A", prompt: Sequence[int] = (1, 2, 3), **sampling: Any) -> Request:
    return Request(id=name, prompt=tuple(prompt), sampling=SamplingParams(**sampling))


def finish(engine: Engine) -> None:
    for _ in range(200):
        if not engine.has_unfinished:
            return
        engine.step()
    raise AssertionError("no end in sight")


def run(engine: Engine, *requests: Request) -> list[SequenceGroup]:
    groups = [engine.add(each) for each in requests]
    finish(engine)
    check_nothing_leaked(engine)
    return groups


class TestFrontDoor:
    @pytest.mark.parametrize(
        ("bad", "message"),
        [
            (request(prompt=()), "empty prompt"),
            (request(prompt=range(64)), "max_model_len=64"),
            (request(prompt=range(70)), "shorten it"),
            (request(prompt=range(41)), "raise num_blocks"),
            (request(prompt=(1, 100)), r"token id 100.*\(0 to 99\)"),
            (request(prompt=(-1,)), "token id -1"),
            (request(logit_bias={100: 1.0}), "logit_bias.*token id 100"),
            (request(stop_token_ids=[100]), "stop_token_ids.*token id 100"),
            (request(n=9), "max_num_seqs=8"),
        ],
    )
    def test_refuses_what_can_never_run(self, bad: Request, message: str) -> None:
        engine = engine_with({"vocab_size": 100}, num_blocks=10, scheduler={"max_num_seqs": 8})
        with pytest.raises(RequestError, match=message):
            engine.add(bad)
        assert not engine.has_unfinished
        (good,) = run(engine, request(prompt=range(40), max_tokens=None, min_tokens=0))
        assert good.live == []

    def test_refuses_an_id_that_is_in_use_until_it_is_free(self) -> None:
        engine = engine_with()
        engine.add(request())
        with pytest.raises(RequestError, match="served already"):
            engine.add(request())
        finish(engine)
        engine.add(request())

    def test_the_longest_prompt_that_leaves_room_is_served(self) -> None:
        (group,) = run(engine_with(), request(prompt=range(63), max_tokens=5))
        assert len(group.sequences[0].output) == 1
        assert group.sequences[0].finish_reason is FinishReason.LENGTH

    def test_any_token_id_is_served_where_there_is_no_vocabulary(self) -> None:
        run(engine_with(), request(prompt=(10**9,), stop_token_ids=[-5]))


class TestEnds:
    def test_at_max_tokens(self) -> None:
        (group,) = run(engine_with(), request(max_tokens=5))
        (sequence,) = group.sequences
        assert len(sequence.output) == 5
        assert (sequence.finish_reason, sequence.stop_reason) == (FinishReason.LENGTH, None)

    @pytest.mark.parametrize(
        ("scheduler", "cap"), [("token_budget", 64), ("prefill_or_decode", 65)]
    )
    def test_at_the_length_of_the_model(self, scheduler: str, cap: int) -> None:
        (group,) = run(engine_with(scheduler=scheduler), request(max_tokens=None))
        assert len(group.sequences[0].tokens) == cap
        assert group.sequences[0].finish_reason is FinishReason.LENGTH

    @pytest.mark.parametrize("scheduler", ["token_budget", "prefill_or_decode"])
    def test_when_it_fills_the_pool_alone(self, scheduler: str) -> None:
        engine = engine_with(scheduler=scheduler, num_blocks=4, block_size=4)
        (group,) = run(engine, request(prompt=range(10), max_tokens=30))
        (sequence,) = group.sequences
        assert sequence.finish_reason is FinishReason.LENGTH
        assert sequence.error, "the reason is said"
        assert sequence.output == text_alone(engine, group.request)[: len(sequence.output)]
        assert 4 <= len(sequence.output) <= 7

    def test_at_the_end_of_sequence_token(self) -> None:
        engine = engine_with({"eos_token_ids": frozenset({EOS})}, [1, 2, EOS, 3])
        (group,) = run(engine, request())
        (sequence,) = group.sequences
        assert sequence.output == [1, 2, EOS]
        assert (sequence.finish_reason, sequence.stop_reason) == (FinishReason.STOP, None)

    def test_not_there_if_it_is_to_be_ignored(self) -> None:
        engine = engine_with({"eos_token_ids": frozenset({EOS})}, [1, EOS, 3])
        (group,) = run(engine, request(ignore_eos=True, max_tokens=5))
        assert group.sequences[0].output == [1, EOS, 3, 1, EOS]

    def test_at_a_stop_token(self) -> None:
        (group,) = run(engine_with(text=[1, 2, 3]), request(stop_token_ids=[9, 2]))
        (sequence,) = group.sequences
        assert sequence.output == [1, 2]
        assert (sequence.finish_reason, sequence.stop_reason) == (FinishReason.STOP, 2)

    def test_at_a_stop_token_even_if_it_is_the_last_that_fits(self) -> None:
        (group,) = run(engine_with(text=[1, 2]), request(stop_token_ids=[2], max_tokens=2))
        assert group.sequences[0].finish_reason is FinishReason.STOP

    def test_nowhere_before_min_tokens(self) -> None:
        engine = engine_with({"eos_token_ids": frozenset({EOS})}, [EOS, 2, EOS, EOS])
        (group,) = run(engine, request(min_tokens=4))
        assert group.sequences[0].output == [EOS, 2, EOS, EOS]

    def test_where_the_stop_check_says(self) -> None:
        engine = engine_with(text=[1, 2, 3])

        def check(sequence: SequenceState) -> str | None:
            return "!" if sequence.tokens[-1] == 3 else None

        group = engine.add(request(), check)
        finish(engine)
        (sequence,) = group.sequences
        assert sequence.output == [1, 2, 3]
        assert (sequence.finish_reason, sequence.stop_reason) == (FinishReason.STOP, "!")

    def test_each_sequence_of_a_request_by_itself(self) -> None:
        engine = engine_with()
        engine.executor.draw = lambda new, tokens, index: index  # type: ignore[attr-defined]
        (group,) = run(engine, request(n=3, stop_token_ids=[1], max_tokens=4))
        assert [s.output for s in group.sequences] == [[0] * 4, [1], [2] * 4]
        assert [s.finish_reason for s in group.sequences] == [
            FinishReason.LENGTH,
            FinishReason.STOP,
            FinishReason.LENGTH,
        ]

    def test_all_sequences_may_end_with_their_first_token(self) -> None:
        (group,) = run(engine_with(), request(n=3, max_tokens=1))
        assert [len(s.output) for s in group.sequences] == [1, 1, 1]


class TestSequences:
    @pytest.mark.parametrize("scheduler", ["token_budget", "prefill_or_decode"])
    def test_fork_after_the_prompt_and_share_its_blocks(self, scheduler: str) -> None:
        engine = engine_with(scheduler=scheduler, block_size=4)
        group = engine.add(request(prompt=range(10), n=3, temperature=1.0, max_tokens=4))
        engine.step()
        assert (group.forked, len(group.live), group.seats) == (True, 3, 3)
        assert engine.kv_cache.num_blocks - engine.kv_cache.num_free == 3
        engine.step()
        assert engine.kv_cache.num_blocks - engine.kv_cache.num_free == 5
        finish(engine)
        assert [s.index for s in group.sequences] == [0, 1, 2]
        for sequence in group.sequences:
            assert sequence.output == text_alone(engine, group.request, sequence.index)
        assert len({tuple(s.output) for s in group.sequences}) == 3

    def test_what_was_cached_is_counted_at_the_first_admission(self) -> None:
        engine = engine_with(block_size=4)
        first, second = run(engine, request("A", range(10)), request("B", range(10)))
        assert (first.num_cached, second.num_cached) == (0, 8)
        (third,) = run(engine, request("C", range(10)))
        assert third.num_cached == 8

    def test_preemption_does_not_change_what_was_cached_at_first(self) -> None:
        engine = engine_with(num_blocks=6, block_size=4, scheduler={"reserve_full_sequence": False})
        groups = run(engine, *(request(str(i), [i] * 8, max_tokens=10) for i in range(3)))
        assert any(group.num_preemptions for group in groups)
        assert [group.num_cached for group in groups] == [0, 0, 0]
        assert all(len(group.sequences[0].output) == 10 for group in groups)

    def test_times_are_written_down(self) -> None:
        engine = engine_with()
        (group,) = run(engine, request(max_tokens=3))
        assert (group.admitted_at, group.first_token_at, group.finished_at) == (0.0, 0.0, 2.0)
        assert group.status is Status.FINISHED


class TestAbort:
    def small(self, **settings: Any) -> Engine:
        return engine_with(
            **{"num_blocks": 4, "block_size": 4, "num_host_blocks": 8, **settings},
        )

    def test_of_what_is_unknown_does_nothing(self) -> None:
        assert engine_with().abort("nobody") is None

    def test_while_it_waits(self) -> None:
        engine = self.small(scheduler={"max_num_seqs": 1})
        first, second = engine.add(request("A")), engine.add(request("B"))
        engine.step()
        assert second.status is Status.WAITING
        assert engine.abort("B") is second
        assert second.sequences[0].finish_reason is FinishReason.ABORT
        finish(engine)
        assert first.sequences[0].finish_reason is FinishReason.LENGTH
        check_nothing_leaked(engine)

    def test_while_it_runs(self) -> None:
        engine = self.small()
        group = engine.add(request(prompt=range(6), n=2))
        engine.step()
        engine.step()
        assert group.status is Status.RUNNING
        engine.abort("A")
        assert len(group.sequences[0].output) == 2
        check_nothing_leaked(engine)
        assert not engine.has_unfinished

    def test_in_the_middle_of_its_prompt(self) -> None:
        engine = self.small(scheduler={"max_num_batched_tokens": 4})
        engine.add(request(prompt=range(10)))
        engine.step()
        engine.abort("A")
        check_nothing_leaked(engine)

    @pytest.mark.parametrize("scheduler", ["token_budget", "prefill_or_decode"])
    def test_while_it_is_swapped_out(self, scheduler: str) -> None:
        engine = self.small(preemption="swap", scheduler=scheduler, num_blocks=5)
        groups = [engine.add(request(str(i), [i] * 7, max_tokens=8)) for i in range(2)]
        for _ in range(50):
            engine.step()
            if groups[1].status is Status.SWAPPED:
                break
        assert groups[1].status is Status.SWAPPED
        engine.abort("1")
        assert engine.kv_cache.num_free_host == 8
        finish(engine)
        assert groups[0].sequences[0].output == text_alone(engine, groups[0].request)
        check_nothing_leaked(engine)

    def test_after_a_preemption(self) -> None:
        engine = self.small(scheduler={"reserve_full_sequence": False})
        groups = [engine.add(request(str(i), [i] * 6, max_tokens=8)) for i in range(2)]
        while not groups[1].num_preemptions:
            engine.step()
        engine.abort("1")
        finish(engine)
        assert len(groups[0].sequences[0].output) == 8
        check_nothing_leaked(engine)

    def test_closing_aborts_everything(self) -> None:
        engine = self.small()
        groups = [engine.add(request(str(i))) for i in range(3)]
        engine.step()
        engine.close()
        assert {g.sequences[0].finish_reason for g in groups} == {FinishReason.ABORT}


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
        assert engine.step() == []
        with capture_logs() as logs:
            assert engine.step() == [a, b]
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
    def test_nobody_finds_what_a_failed_step_was_to_fill(self, when: str) -> None:
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

        draw = engine.executor.draw  # type: ignore[attr-defined]
        engine.executor.draw = interrupt  # type: ignore[attr-defined]
        engine.add(request("A"))
        with pytest.raises(KeyboardInterrupt):
            engine.step()
        check_nothing_leaked(engine)
        engine.executor.draw = draw  # type: ignore[attr-defined]
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

    def test_nothing_is_recorded_for_nobody(self, monkeypatch: pytest.MonkeyPatch) -> None:
        engine = engine_with(observers=[Observer()])
        monkeypatch.setattr(engine, "_record", None)
        run(engine, request())
