"""Checks of new requests, the ways in which a request ends, and the state after an error."""

from __future__ import annotations

from typing import Any

import pytest

from paged_core.engine.engine import Engine
from paged_core.errors import RequestError
from paged_core.request import FinishReason, Request
from paged_core.sequence import SequenceState, Status
from paged_testing.served import check_nothing_leaked, text_alone
from unit.engines import EOS, engine_with, finish, request, run


class TestAdding:
    @pytest.mark.parametrize(
        ("bad", "message"),
        [
            (request(prompt=()), "empty prompt"),
            (request(prompt=range(64)), "max_model_len=64"),
            (request(prompt=range(70)), "shorten it"),
            (request(prompt=range(41)), "raise num_blocks"),
            (request(prompt=(1, 100)), r"token id 100.*\(0 to 99\)"),
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

    def test_refuses_what_can_never_have_its_run_of_blocks(self) -> None:
        engine = engine_with(
            block_allocator="contiguous", scheduler="iteration_level", num_blocks=8, block_size=4
        )
        with pytest.raises(RequestError, match=r"'A' can never run: .* adjacent blocks"):
            engine.add(request("A", max_tokens=None))

    def test_the_longest_prompt_that_leaves_room_is_served(self) -> None:
        (group,) = run(engine_with(), request(prompt=range(63), max_tokens=5))
        assert len(group.sequences[0].output) == 1
        assert group.sequences[0].finish_reason is FinishReason.LENGTH

    def test_any_token_id_is_served_where_there_is_no_vocabulary(self) -> None:
        run(engine_with(), request(prompt=(10**9,), stop_token_ids=[2**31]))


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
        engine.executor.sample = lambda new, tokens, index: index  # type: ignore[attr-defined]
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
        assert (group.forked, len(group.live), group.num_seqs) == (True, 3, 3)
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
        assert engine_with().abort("unknown") is None

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
