"""Requests that return the best of several sequences, step by step."""

from __future__ import annotations

from typing import Any

import pytest

from paged_core.errors import RequestError
from paged_core.request import FinishReason
from paged_core.sampling_params import SamplingParams
from paged_core.sequence import SequenceGroup
from paged_testing.engines import build_memory_engine
from paged_testing.served import check_nothing_leaked, check_said
from unit.engines import engine_with, finish, request, run


class TestParameters:
    @pytest.mark.parametrize(
        ("values", "message"),
        [
            ({"beam_width": 0}, "at least 1"),
            ({"beam_width": 2, "n": 3}, "n .3. is larger than beam_width .2."),
            ({"beam_width": 2, "temperature": 0.5}, "temperature cannot go with beam_width"),
            ({"beam_width": 2, "top_k": 5, "top_p": 0.5}, "top_k and top_p cannot"),
            ({"beam_width": 2, "best_of": 2}, "best_of cannot"),
            ({"beam_width": 2, "stop": "x"}, "use stop_token_ids"),
            ({"beam_width": 2, "length_penalty": 11.0}, "length_penalty must be in"),
            ({"beam_width": 2, "length_penalty": float("nan")}, "length_penalty must be"),
            ({"beam_width": 2, "early_stopping": "always"}, "early_stopping must be"),
            ({"length_penalty": 2.0}, "set beam_width too"),
            ({"early_stopping": True}, "set beam_width too"),
            ({"n": 3, "best_of": 2, "temperature": 1.0}, "best_of .2. is smaller than n .3."),
            ({"best_of": 2}, "all the same with temperature=0"),
        ],
    )
    def test_contradictions_are_refused(self, values: dict[str, Any], message: str) -> None:
        with pytest.raises(RequestError, match=message):
            SamplingParams(**values)

    def test_a_width_that_can_never_run_is_refused(self) -> None:
        engine = build_memory_engine(scheduler={"name": "token_budget", "max_num_seqs": 3})
        with pytest.raises(RequestError, match=r"beam_width=4 .*max_num_seqs=3"):
            engine.add(request(beam_width=4))
        with pytest.raises(RequestError, match=r"best_of=4 .*max_num_seqs=3"):
            engine.add(request(best_of=4, temperature=1.0))
        runs = build_memory_engine(block_allocator="contiguous", scheduler="iteration_level")
        with pytest.raises(RequestError, match="use beam_width=1"):
            runs.add(request(beam_width=2))
        for name in ("token_budget", "prefill_or_decode"):
            budget = build_memory_engine(scheduler={"name": name, "max_num_batched_tokens": 3})
            with pytest.raises(RequestError, match="4 sequences decode together"):
                budget.add(request(beam_width=4, prompt=(1,)))

    def test_a_stop_check_is_refused_for_beams(self) -> None:
        with pytest.raises(RequestError, match="end at tokens only"):
            build_memory_engine().add(request(beam_width=2), lambda sequence: None)


def searching(engine: Any, *, max_tokens: int = 8, **sampling: Any) -> SequenceGroup:
    group: SequenceGroup = engine.add(request(max_tokens=max_tokens, **sampling))
    return group


class TestSearch:
    def test_counts_all_its_beams_from_the_start_to_the_end(self) -> None:
        engine = build_memory_engine()
        group = searching(engine, beam_width=3)
        num_seqs = []
        while engine.has_unfinished:
            num_seqs.append(group.num_seqs)
            engine.step()
        assert set(num_seqs) == {3}

    @pytest.mark.parametrize("ignores", [False, True])
    def test_says_why_each_hypothesis_ended(self, ignores: bool) -> None:
        capacity = {"eos_token_ids": frozenset({3})}
        engine = engine_with(capacity, executor={"name": "memory", "vocab_size": 8})
        asked = {"stop_token_ids": (3, 5), "ignore_eos": ignores}
        (group,) = run(engine, request(beam_width=3, n=3, max_tokens=4, **asked))
        for sequence in group.sequences:
            last = sequence.output[-1]
            stopped = sequence.finish_reason is FinishReason.STOP
            assert stopped == (last in (3, 5))
            named = (3, 5) if ignores else (5,)
            assert sequence.stop_reason == (last if last in named else None)
        assert any(sequence.finish_reason is FinishReason.STOP for sequence in group.sequences)

    def test_fewer_tokens_than_beams(self) -> None:
        """Beams start from what there is; transformers fills up with sequences of no weight."""
        engine = build_memory_engine(executor={"name": "memory", "vocab_size": 2})
        (group,) = run(engine, request(beam_width=8, n=8, max_tokens=3))
        assert len({tuple(sequence.output) for sequence in group.sequences}) == 8

    def test_fails_if_nothing_may_go_on(self) -> None:
        engine = build_memory_engine()
        engine.executor.rank = lambda tokens, count: {}  # type: ignore[attr-defined]
        (group,) = run(engine, request(beam_width=2))
        assert group.sequences[0].finish_reason is FinishReason.ERROR
        assert "ruled out" in (group.sequences[0].error or "")

    @pytest.mark.parametrize("steps", [0, 1, 4, 9])
    def test_given_up_at_any_time_it_leaves_no_block(self, steps: int) -> None:
        engine = build_memory_engine()
        group = searching(engine, beam_width=3, n=2, max_tokens=12)
        for _ in range(steps):
            engine.step()
        engine.abort(group.id)
        check_nothing_leaked(engine)
        assert 1 <= len(group.sequences) <= 2
        assert {each.finish_reason for each in group.sequences} == {FinishReason.ABORT}

    def test_a_search_that_outgrows_the_cache_returns_what_it_has_and_says_so(self) -> None:
        engine = build_memory_engine(num_blocks=6, block_size=4)
        (group,) = run(engine, request(beam_width=4, n=2, max_tokens=40))
        assert len(group.sequences) == 2
        for sequence in group.sequences:
            assert sequence.finish_reason is FinishReason.LENGTH
            assert "cache" in (sequence.error or "")
            assert 0 < len(sequence.output) < 40


class TestBestOf:
    def test_returns_the_best_of_those_it_sampled(self) -> None:
        engine = build_memory_engine()
        (group,) = run(engine, request(best_of=5, n=2, temperature=1.0, max_tokens=6))
        check_said(engine, group)
        assert [sequence.index for sequence in group.sequences] == [0, 1]
        for sequence in group.sequences:
            assert sequence.score == pytest.approx(sequence.cumulative_logprob / 6)
            assert sequence.logprobs is None, "they were not requested"

    def test_one_that_failed_is_not_passed_over(self) -> None:
        engine = build_memory_engine()
        group = engine.add(
            request(best_of=3, temperature=1.0, max_tokens=6),
            lambda sequence: 1 / 0 if sequence.index == 2 else None,  # type: ignore[return-value]
        )
        finish(engine)
        assert group.sequences[0].finish_reason is FinishReason.ERROR
