"""Conversations: their prompts, their order, and how an engine completes them."""

from __future__ import annotations

import pytest

from paged_core import LLM
from paged_core.errors import EngineError
from paged_plugins.bench.measurement import Bench, Completed, complete
from paged_plugins.workloads.batch import BatchWorkload, Draw, by_turn
from paged_plugins.workloads.request import WorkloadRequest, linked, token_ids

pytestmark = pytest.mark.heavy


CHAT: list[Draw] = [
    *(([1, 2, 3], 4, None), ([4, 5], 2, None)),
    *(([6], 3, 0), ([7, 8], 2, 1)),
    ([9], 1, 2),
]


def requests(drawn: list[Draw]) -> list[WorkloadRequest]:
    return BatchWorkload("chat", lambda _: drawn).requests()


@pytest.mark.parametrize("follows", [1, 2])
def test_a_conversation_is_a_chain(follows: int) -> None:
    with pytest.raises(ValueError, match=f"follows '{follows}', which stands not before it"):
        requests([([1], 1, None), ([1], 1, follows), ([1], 1, None)])
    assert linked([]) == []


def full_prompt(
    done: dict[str, Completed], request: WorkloadRequest, follows: str | None
) -> list[int]:
    """The prompt of a request, from what was generated for the one that it follows."""
    own = token_ids(request.prompt, None)
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
            assert output.prompt_token_ids == full_prompt(done, request, follows)
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
        for each in run.record.requests:
            assert each.first_token is not None
            assert 0 <= each.first_token - each.arrival < run.elapsed

    def test_does_not_go_on_after_a_turn_that_ended_early(self) -> None:
        with LLM(executor="memory", num_blocks=64, max_model_len=6) as llm:
            with pytest.raises(EngineError, match="ended after 3 of 4 tokens"):
                complete(llm, requests([([1, 2, 3], 4, None), ([4], 1, 0)]), lambda: None)
            assert not llm.engine.scheduler
