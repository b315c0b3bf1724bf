"""Without the KV cache a model says the same, of every kind of request."""

from __future__ import annotations

from typing import Any

import pytest

from paged_core import LLM, SamplingParams

PROMPT = "Once upon a time there was a little girl who lived in"
ASKED = [
    SamplingParams(max_tokens=12, logprobs=1, prompt_logprobs=1),
    SamplingParams(max_tokens=12, n=2, temperature=0.8, seed=3),
    SamplingParams(max_tokens=6, n=2, beam_width=3),
]


@pytest.fixture
def answers() -> Any:
    """What the demo model says, a chunk of eight tokens at a time."""

    def said(**settings: Any) -> list[Any]:
        chunks = {"name": "token_budget", "max_num_batched_tokens": 8}
        with LLM(scheduler=chunks, num_blocks=64, **settings) as llm:
            outputs = llm.generate([PROMPT] * len(ASKED), ASKED)
        return [(each.prompt_logprobs, [one.token_ids for one in each.outputs]) for each in outputs]

    return said


def test_a_model_says_the_same_without_its_cache(answers: Any) -> None:
    with_cache, without = answers(), answers(kv_cache="off")
    assert [tokens for _, tokens in without] == [tokens for _, tokens in with_cache]
    known, recomputed = with_cache[0][0], without[0][0]
    assert len(recomputed) == len(known) > 8
    for one, other in zip(known[1:], recomputed[1:], strict=True):
        assert list(other) == list(one)
        assert list(other.values()) == pytest.approx(list(one.values()), abs=1e-3)
