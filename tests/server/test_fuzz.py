"""Any request has an answer that the document knows, and leaves nothing behind."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from server.served import Served, events

ANY: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    1,
    3,
    1.5,
    1e30,
    1 << 70,
    "",
    "x",
    [],
    [1],
    ["a"],
    {},
    {"a": 1},
)
"""What any field may be sent as."""
SCHEMA = {"type": "object", "properties": {"a": {"enum": [1, "b"]}}, "required": ["a"]}
TOOL = {"type": "function", "function": {"name": "look", "parameters": SCHEMA}}
GOOD: dict[str, tuple[Any, ...]] = {
    "model": ("demo",),
    "stream": (True, False),
    "stream_options": ({"include_usage": True}, {"continuous_usage_stats": True}),
    "n": (1, 2, 3),
    "temperature": (0, 0.5, 2),
    "top_p": (0.1, 1),
    "presence_penalty": (-2, 0.5),
    "frequency_penalty": (1,),
    "logit_bias": ({"5": 100}, {"6": -100}),
    "seed": (0, 7),
    "stop": ("a", ["the", "\n"]),
    "max_tokens": (1, 2, 9),
    "top_k": (1, 40),
    "min_p": (0.05,),
    "repetition_penalty": (1.2,),
    "best_of": (2, 3),
    "beam_width": (2,),
    "use_beam_search": (True, False),
    "allowed_token_ids": ([5, 6, 7],),
    "bad_words": (["the"],),
    "stop_token_ids": ([9],),
    "include_stop_str_in_output": (True,),
    "ignore_eos": (True,),
    "min_tokens": (1,),
    "skip_special_tokens": (False,),
    "truncate_prompt_tokens": (3, -1),
    "truncation_side": ("right", "left"),
    "prompt_logprobs": (1,),
    "return_token_ids": (True,),
    "return_tokens_as_token_ids": (True,),
    "add_special_tokens": (True, False),
    "priority": (3,),
    "cache_salt": ("salt",),
    "deadline": (0.001, 30),
    "user": ("someone",),
    "metadata": ({"a": "b"},),
    "response_format": (
        {"type": "text"},
        {"type": "json_object"},
        {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}},
        {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nothing"}}},
        {"type": "json_schema", "json_schema": {"name": "x", "schema": {"$ref": "#/$defs/y"}}},
        {"type": "json_schema"},
    ),
    "structured_outputs": (
        {"regex": "[ab]{2}"},
        {"regex": "["},
        {"choice": ["yes", "no"]},
        {"grammar": 'start: "a" | "b"'},
        {"grammar": "start: nothing"},
        {"json": SCHEMA, "regex": "a"},
    ),
}
ONLY: dict[str, dict[str, tuple[Any, ...]]] = {
    "/v1/completions": {
        "prompt": ("Hello", [1, 2], ["a", "b"], [[1], [2, 3]], "word " * 99, [[]], ["", "a"]),
        "echo": (True,),
        "logprobs": (0, 3),
    },
    "/v1/chat/completions": {
        "messages": (
            [{"role": "user", "content": "Hello"}],
            [{"role": "system", "content": "x"}, {"role": "user", "content": []}],
            [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}],
            [{"role": "assistant", "content": None, "tool_calls": []}],
            [{"role": "tool", "content": "x", "tool_call_id": "y"}],
        ),
        "logprobs": (True,),
        "top_logprobs": (0, 2),
        "max_completion_tokens": (1, 4),
        "continue_final_message": (True,),
        "echo": (True,),
        "documents": ([{"title": "a", "text": "b"}], [{}]),
        "reasoning_effort": ("low", "none"),
        "include_reasoning": (False,),
        "add_generation_prompt": (True, False),
        "chat_template_kwargs": ({"x": 1}, {"messages": []}),
        "tools": ([TOOL], [TOOL, TOOL], [{"type": "function"}], []),
        "tool_choice": (
            "auto",
            "none",
            "required",
            {"type": "function", "function": {"name": "look"}},
            {"type": "function", "function": {"name": "other"}},
        ),
        "parallel_tool_calls": (False, True),
    },
    "/tokenize": {
        "prompt": ("Hello", ""),
        "messages": ([{"role": "user", "content": "Hello"}], []),
        "return_token_strs": (True,),
    },
    "/detokenize": {"tokens": ([1, 2], [], [1 << 40], [-1])},
    "/abort": {"request_id": ("x",)},
}


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with Served(max_model_len=64, scheduler={"max_num_seqs": 8}) as served:
        yield served


def drawn(chance: random.Random) -> tuple[str, Any]:
    """Return a path and a body: mostly right, often wrong in a field or two."""
    path = chance.choice([*ONLY])
    own = ONLY[path]
    common = GOOD if path.startswith("/v1") else {"model": ("demo",)}
    names = [*own, *chance.sample([*common], min(len(common), chance.randrange(5)))]
    body = {name: chance.choice((own | common)[name]) for name in names if chance.random() < 0.8}
    if path.startswith("/v1"):
        body.setdefault("max_tokens", chance.choice([1, 4]))
        body.setdefault(next(iter(own)), chance.choice(next(iter(own.values()))))
    for _ in range(chance.choice([0, 0, 1, 2])):
        name = chance.choice([*own, *common, "nonsense"])
        body[name] = chance.choice(ANY)
    if chance.random() < 0.05:
        text = json.dumps(body).encode()
        place = chance.randrange(len(text))
        return path, text[:place] + bytes([chance.randrange(256)]) + text[place + 1 :]
    return path, body


def check_requests(served: Served, number: int, seed: int) -> Counter[int]:
    """Send requests, and check each answer; return how many had each status."""
    chance, found = random.Random(seed), Counter[int]()
    for _ in range(number):
        path, body = drawn(chance)
        status, answer, headers = served.ask("POST", path, body)
        found[status] += 1
        assert status in (200, 400, 404, 504), (path, body, status, answer)
        if status != 200:
            assert len(answer["error"]["message"].encode()) <= 1024
        elif headers["content-type"].startswith("text/event-stream"):
            last = events(answer)[-1]
            assert (last == "[DONE]") != ("error" in last), (path, body, answer)
    served.wait_until_idle()
    return found


def test_some_requests(served: Served) -> None:
    found = check_requests(served, 250, seed=1)
    assert found[200] > 20
    assert found[400] > 40


@pytest.mark.slow
def test_many_requests(served: Served) -> None:
    check_requests(served, 3000, seed=random.randrange(1 << 30))
