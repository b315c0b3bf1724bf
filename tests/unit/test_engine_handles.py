"""A handle is of one engine, and what is sent to an executor again is sent whole."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from paged_core import LLM
from paged_core.errors import RequestError
from paged_core.request import FinishReason
from paged_core.requests.pins import PinState
from paged_core.step import NewSequence
from unit.engines import engine_with, request


def test_a_pin_is_released_by_its_own_engine_alone() -> None:
    ours, other = (engine_with(num_blocks=40, block_size=4, max_model_len=32) for _ in range(2))
    pin = ours.pin(tuple(range(8)))
    while ours.has_unfinished:
        ours.step()
    group = other.add(request("A", max_tokens=4))
    other.step()
    with pytest.raises(RequestError, match="'pin-0' pins a prefix in another engine"):
        other.release(pin)
    while other.has_unfinished:
        other.step()
    assert group.sequences[0].finish_reason is FinishReason.LENGTH
    assert (pin.state, ours.kv_cache.num_pinned) == (PinState.HELD, 2)
    ours.release(pin)
    ours.release(pin)  # it has ended: nothing happens
    assert (pin.state, ours.kv_cache.num_pinned) == (PinState.ENDED, 0)


def test_a_request_is_run_and_aborted_by_its_own_llm_alone() -> None:
    with LLM(executor="memory") as ours, LLM(executor="memory") as other:
        mine, theirs = ours.add([1, 2]), other.add([1, 2])
        assert mine.group.id == theirs.group.id
        for use in (ours.abort, lambda them: next(ours.steps(them))):
            with pytest.raises(RequestError, match="'0' is being served by another LLM"):
                use([mine, theirs])
        assert not mine.finished
        assert [one.finished for one in other.run([theirs])] == [True]
        ours.abort([theirs, mine])
        assert mine.group.sequences[0].finish_reason is FinishReason.ABORT


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
