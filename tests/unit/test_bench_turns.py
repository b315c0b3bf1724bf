"""Conversations: their prompts, their order, and how an engine completes them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paged_core import LLM
from paged_core.errors import EngineError
from paged_plugins.bench.measurement import Bench, Completed, complete
from paged_plugins.bench.workloads import NAMED, BatchWorkload, Draw, by_turn, longest
from paged_plugins.workloads.request import WorkloadRequest, linked, token_ids

CHAT: list[Draw] = [
    *(([1, 2, 3], 4, None), ([4, 5], 2, None)),
    *(([6], 3, 0), ([7, 8], 2, 1)),
    ([9], 1, 2),
]


def requests(drawn: list[Draw]) -> list[WorkloadRequest]:
    return BatchWorkload("chat", "", lambda _: drawn).requests()


@st.composite
def chats(draw: st.DrawFn) -> list[Draw]:
    """Draw interleaved conversations, each turn after the one that it follows."""
    items: list[Draw] = []
    ends: list[int | None] = [None] * draw(st.integers(1, 4))
    for which in draw(st.lists(st.integers(0, len(ends) - 1), min_size=1, max_size=12)):
        prompt = draw(st.lists(st.integers(0, 99), min_size=1, max_size=5))
        items.append((prompt, draw(st.integers(1, 4)), ends[which]))
        ends[which] = len(items) - 1
    return items


@given(chats())
def test_prompts_of_a_conversation_extend_each_other(items: list[Draw]) -> None:
    whole: list[int] = []
    for prompt, _, follows in items:
        before = 0 if follows is None else whole[follows] + items[follows][1]
        whole.append(before + len(prompt))
    firsts = requests(items)
    found = {int(each.id): length for first in firsts for each, length in first.whole_prompts()}
    assert found == dict(enumerate(whole))
    assert longest(firsts) == max(whole[place] + items[place][1] for place in range(len(items)))


@given(chats())
def test_a_turn_is_in_the_round_after_that_which_it_follows(items: list[Draw]) -> None:
    firsts = requests(items)
    turns: dict[str | None, int] = {None: -1}
    for request, follows in by_turn(firsts):
        turns[request.id] = turns[follows] + 1
    assert list(turns.values()) == sorted(turns.values())
    assert len(turns) == len(items) + 1
    for first in firsts:
        chain = list(first.family())
        assert [turns[request.id] for request in chain] == list(range(len(chain)))


@pytest.mark.parametrize("follows", [1, 2])
def test_a_conversation_is_a_chain(follows: int) -> None:
    with pytest.raises(ValueError, match=f"follows '{follows}', which stands not before it"):
        requests([([1], 1, None), ([1], 1, follows), ([1], 1, None)])
    assert linked([]) == []


def full_prompt(done: dict[str, Completed], name: str, follows: str | None) -> list[int]:
    """The prompt of a request, from what was generated for the one that it follows."""
    own = token_ids(done[name].request.prompt, None)
    if follows is None:
        return own
    group = done[follows].generation.group
    return [*group.request.prompt, *group.sequences[0].output, *own]


class TestAnEngine:
    def test_gets_a_turn_when_the_one_before_has_ended(self) -> None:
        advanced, firsts = [], requests(CHAT)
        with LLM(executor="memory", num_blocks=64, max_model_len=64) as llm:
            done = complete(llm, firsts, lambda: advanced.append(llm.engine.num_steps))
        for request, follows in by_turn(firsts):
            output = done[request.id].generation.output()
            assert output.prompt_token_ids == full_prompt(done, request.id, follows)
            assert len(output.outputs[0].token_ids) == request.output
        # each turn draws its first token in the step after that in which the turn before ended
        assert advanced == [2, 4, 4, 7, 8]

    def test_first_tokens_count_from_when_a_turn_arrives(self) -> None:
        with LLM(executor="memory", num_blocks=64, max_model_len=64) as llm:
            done = complete(llm, requests(CHAT), lambda: None)
            run = Bench(llm).run(requests(CHAT))
        first, later = done["0"].generation.group, done["2"].generation.group
        assert first.finished_at is not None
        assert later.arrival >= first.finished_at
        assert all(0 <= seconds < run.elapsed for seconds in run.first_token)

    def test_reports_full_prompts_and_all_tokens(self) -> None:
        with LLM(executor="memory", num_blocks=64, max_model_len=64) as llm:
            row = Bench(llm).measure(BatchWorkload("chat", "", lambda _: CHAT), repeats=2)
        assert (row["requests"], row["output_tokens"]) == (5, 4 + 2 + 3 + 2 + 1)
        assert row["input_tokens"] == 3 + 2 + (3 + 4 + 1) + (2 + 2 + 2) + (8 + 3 + 1)

    def test_does_not_go_on_after_a_turn_that_ended_early(self) -> None:
        with LLM(executor="memory", num_blocks=64, max_model_len=6) as llm:
            with pytest.raises(EngineError, match="ended after 3 of 4 tokens"):
                complete(llm, requests([([1, 2, 3], 4, None), ([4], 1, 0)]), lambda: None)
            assert not llm.engine.scheduler

    def test_finds_earlier_turns_in_its_cache(self) -> None:
        with LLM(executor="memory", num_blocks=600, max_model_len=1024) as llm:
            done = complete(llm, NAMED["W7"].requests(), lambda: None)
        later = [one.generation.output() for name, one in done.items() if int(name) >= 8]
        assert all(one.num_cached_tokens >= 150 for one in later)
