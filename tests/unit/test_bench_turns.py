"""Conversations: their prompts, their order, and how an engine completes them."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paged_core import LLM
from paged_core.errors import EngineError
from paged_plugins.bench.completion import complete
from paged_plugins.bench.measurement import Bench
from paged_plugins.bench.turns import conversations, full_prompt, longest, prompt_lengths, rounds
from paged_plugins.bench.workloads import NAMED, BatchWorkload, Item

CHAT = [
    *(Item([1, 2, 3], 4), Item([4, 5], 2)),
    *(Item([6], 3, follows=0), Item([7, 8], 2, follows=1)),
    Item([9], 1, follows=2),
]


@st.composite
def chats(draw: st.DrawFn) -> list[Item]:
    """Draw interleaved conversations, each turn after the one that it follows."""
    items: list[Item] = []
    ends: list[int | None] = [None] * draw(st.integers(1, 4))
    for which in draw(st.lists(st.integers(0, len(ends) - 1), min_size=1, max_size=12)):
        prompt = draw(st.lists(st.integers(0, 99), min_size=1, max_size=5))
        items.append(Item(prompt, draw(st.integers(1, 4)), follows=ends[which]))
        ends[which] = len(items) - 1
    return items


@given(chats(), st.integers())
def test_prompts_of_a_conversation_extend_each_other(items: list[Item], seed: int) -> None:
    chance = random.Random(seed)
    outputs = {
        place: [chance.randrange(100) for _ in range(item.num_output)]
        for place, item in enumerate(items)
    }
    prompts = [full_prompt(items, place, outputs) for place in range(len(items))]
    for place, item in enumerate(items):
        before = [] if item.follows is None else prompts[item.follows] + outputs[item.follows]
        assert prompts[place] == before + item.prompt
    assert [len(prompt) for prompt in prompts] == prompt_lengths(items)
    assert longest(items) == max(len(prompts[i]) + len(outputs[i]) for i in outputs)


@given(chats())
def test_a_turn_is_in_the_round_after_that_which_it_follows(items: list[Item]) -> None:
    turn = {place: number for number, places in enumerate(rounds(items)) for place in places}
    assert sorted(turn) == list(range(len(items)))
    for place, item in enumerate(items):
        assert turn[place] == (0 if item.follows is None else turn[item.follows] + 1)
    for chain in conversations(items):
        assert [turn[place] for place in chain] == list(range(len(chain)))


@pytest.mark.parametrize(
    ("follows", "message"),
    [
        ((None, 1), "item 1 follows item 1, which is not earlier"),
        ((None, -1), "item 1 follows item -1, which is not earlier"),
        ((None, 0, 0), "item 2 is the second to follow item 0"),
    ],
)
def test_a_conversation_is_a_chain(follows: tuple[int | None, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rounds([Item([1], 1, follows=one) for one in follows])


def test_what_comes_before_must_be_generated() -> None:
    with pytest.raises(KeyError):
        full_prompt(CHAT, 4, {0: [1, 2, 3, 4]})


class TestAnEngine:
    def test_gets_a_turn_when_the_one_before_has_ended(self) -> None:
        advanced = []
        with LLM(executor="memory", num_blocks=64, max_model_len=64) as llm:
            done = complete(llm, CHAT, lambda: advanced.append(llm.engine.num_steps))
        outputs = {
            place: one.generation.output().outputs[0].token_ids for place, one in enumerate(done)
        }
        for place, one in enumerate(done):
            assert one.generation.output().prompt_token_ids == full_prompt(CHAT, place, outputs)
            assert len(outputs[place]) == CHAT[place].num_output
        # each turn draws its first token in the step after that in which the turn before ended
        assert advanced == [2, 4, 4, 7, 8]

    def test_first_tokens_count_from_when_a_turn_arrives(self) -> None:
        with LLM(executor="memory", num_blocks=64, max_model_len=64) as llm:
            done = [one.generation.group for one in complete(llm, CHAT, lambda: None)]
            run = Bench(llm).run(CHAT)
        assert done[0].finished_at is not None
        assert done[2].arrival >= done[0].finished_at
        assert all(0 <= seconds < run.elapsed for seconds in run.first_token)

    def test_reports_full_prompts_and_all_tokens(self) -> None:
        with LLM(executor="memory", num_blocks=64, max_model_len=64) as llm:
            row = Bench(llm).measure(BatchWorkload("chat", "", lambda _: CHAT), repeats=2)
        assert (row["requests"], row["output_tokens"]) == (5, 4 + 2 + 3 + 2 + 1)
        assert row["input_tokens"] == 3 + 2 + (3 + 4 + 1) + (2 + 2 + 2) + (8 + 3 + 1)

    def test_does_not_go_on_after_a_turn_that_ended_early(self) -> None:
        with LLM(executor="memory", num_blocks=64, max_model_len=6) as llm:
            with pytest.raises(EngineError, match="ended after 3 of 4 tokens"):
                complete(llm, [Item([1, 2, 3], 4), Item([4], 1, follows=0)], lambda: None)
            assert not llm.engine.scheduler

    def test_finds_earlier_turns_in_its_cache(self) -> None:
        with LLM(executor="memory", num_blocks=600, max_model_len=1024) as llm:
            done = complete(llm, NAMED["W7"].items(), lambda: None)
        later = [one.generation.output() for one in done[8:]]
        assert all(one.num_cached_tokens >= 150 for one in later)
