"""Checks of new requests, the ways in which a request ends, and the state after an error."""

from __future__ import annotations

from typing import Any

import pytest

from paged_core.errors import RequestError
from paged_core.request import FinishReason, Request
from paged_core.sequence import SequenceState
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


class TestEnds:
    @pytest.mark.parametrize(
        ("scheduler", "cap"), [("token_budget", 64), ("prefill_or_decode", 65)]
    )
    def test_at_the_length_of_the_model(self, scheduler: str, cap: int) -> None:
        (group,) = run(engine_with(scheduler=scheduler), request(max_tokens=None))
        assert len(group.sequences[0].tokens) == cap
        assert group.sequences[0].finish_reason is FinishReason.LENGTH

    @pytest.mark.parametrize(
        ("text", "asked", "output", "reason", "stop"),
        [
            ([1, 2, 3], {"max_tokens": 5}, [1, 2, 3, 1, 2], "length", None),
            ([1, 2, EOS, 3], {}, [1, 2, EOS], "stop", None),
            (
                [1, EOS, 3],
                {"ignore_eos": True, "max_tokens": 5},
                [1, EOS, 3, 1, EOS],
                "length",
                None,
            ),
            ([1, 2, 3], {"stop_token_ids": [9, 2]}, [1, 2], "stop", 2),
            ([1, EOS, 3], {"stop_token_ids": [EOS]}, [1, EOS], "stop", None),
            ([1, EOS], {"ignore_eos": True, "stop_token_ids": [EOS]}, [1, EOS], "stop", EOS),
            ([1, 2], {"stop_token_ids": [2], "max_tokens": 2}, [1, 2], "stop", 2),
            ([EOS, 2, EOS, EOS], {"min_tokens": 4}, [EOS, 2, EOS, EOS], "stop", None),
        ],
        ids=[
            "at max_tokens",
            "at the end-of-sequence token",
            "not there if it is to be ignored",
            "at a stop token",
            "at the model's own end, listed or not",
            "at an end that is listed where the model's own are ignored",
            "at a stop token that is the last that fits",
            "nowhere before min_tokens",
        ],
    )
    def test_ends(
        self, text: list[int], asked: dict[str, Any], output: list[int], reason: str, stop: Any
    ) -> None:
        (group,) = run(engine_with({"eos_token_ids": frozenset({EOS})}, text), request(**asked))
        (sequence,) = group.sequences
        assert sequence.output == output
        assert (sequence.finish_reason, sequence.stop_reason) == (FinishReason(reason), stop)

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


class TestSequences:
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


class TestAbort:
    """At any moment, in whatever state: see the conformance class of schedulers."""

    def test_of_what_is_unknown_does_nothing(self) -> None:
        engine = engine_with()
        assert engine.abort("unknown") is None
        group = engine.add(request())
        assert engine.abort("A") is group
        assert group.sequences[0].finish_reason is FinishReason.ABORT
        assert not engine.has_unfinished
