"""What is wrong with a request is said by the field, with 400, in OpenAI's form."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from typing import Any

import msgspec
import openai
import pytest

from paged_plugins.server.errors import ApiError
from paged_plugins.server.http.endpoint import decode
from paged_plugins.server.openai.protocol import CompletionRequest
from server.served import Served, events

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "x"}]


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with Served({"max_choices": 8}, max_model_len=64, scheduler={"max_num_seqs": 4}) as served:
        yield served


@pytest.mark.parametrize(
    ("values", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"n": 0}, "n"),
        ({"n": 1 << 70}, "n"),
        ({"n": 9}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"logprobs": 21}, "logprobs"),
        ({"prompt_logprobs": -1}, "prompt_logprobs"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"stop": [""]}, "stop"),
        ({"stop": [1]}, "stop[0]"),
        ({"stop": ["x"] * 65}, "stop"),
        ({"bad_words": ["x"] * 65}, "bad_words"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "best_of": 2}, "best_of"),
        ({"stream": True, "stream_options": {"usage": True}}, "stream_options.usage"),
        ({"deadline": 0}, "deadline"),
        ({"suffix": "end"}, "suffix"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": ["a"] * 9}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"store": True}, "store"),
        ({"guided_json": {}}, "guided_json"),
        ({"use_beam_search": True, "stream": True}, "use_beam_search"),
        ({"use_beam_search": True, "temperature": 0.5}, "temperature"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs"),
        ({"request_id": ""}, "request_id"),
        ({"nonsense": 1}, "nonsense"),
    ],
    ids=str,
)
def test_a_wrong_field_of_a_completion_is_named(
    served: Served, values: dict[str, Any], param: str | None
) -> None:
    status, error = served.error(COMPLETIONS, {"prompt": "x", **values})
    assert (status, error["type"]) == (400, "invalid_request_error")
    assert error["param"] == param, error["message"]


@pytest.mark.parametrize(
    ("values", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "x"}, "messages"),
        ({"messages": [{"role": "king", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{**MESSAGES[0], "mood": 1}]}, "messages[0].mood"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"tools": [{"type": "function"}]}, "tools.0.function"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"functions": []}, "functions"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"chat_template": "{{ 1 }}"}, "chat_template"),
    ],
    ids=str,
)
def test_a_wrong_field_of_a_chat_is_named(
    served: Served, values: dict[str, Any], param: str
) -> None:
    status, error = served.error(CHAT, {"messages": MESSAGES, **values})
    assert status == 400
    assert error["param"] == param, error["message"]


def test_null_is_the_same_as_leaving_any_field_out(served: Served) -> None:
    nulls = dict.fromkeys(("functions", "prediction", "guided_json", "temperature", "nonsense"))
    body = {"messages": MESSAGES, "max_tokens": 1, "logit_bias": {"5": 1.5}, **nulls}
    assert served.ask("POST", CHAT, body)[0] == 200
    status, error = served.error(CHAT, {**body, "nonsense": 0})
    assert (status, error["param"], error["code"]) == (400, "nonsense", "unknown_field")
    assert served.error(CHAT, {**body, "messages": None})[1]["param"] == "messages"


def test_looking_for_nulls_makes_nothing_of_the_values() -> None:
    """A body of small arrays would take thirty times its size."""
    body = b'{"functions":null,"nonsense":[%b[]]}' % (b"[]," * 200_000)
    decoder = msgspec.json.Decoder(CompletionRequest)
    tracemalloc.start()
    try:
        with pytest.raises(ApiError, match="nonsense"):
            decode(decoder, body)
        assert tracemalloc.get_traced_memory()[1] < 4 * len(body)
    finally:
        tracemalloc.stop()


def test_parts_that_are_no_text_are_refused(served: Served) -> None:
    parts = [{"type": "image_url", "image_url": {"url": "http://x"}}]
    status, error = served.error(CHAT, {"messages": [{"role": "user", "content": parts}]})
    assert status == 400
    assert "messages[0].content[0]" in error["param"]


def test_too_long_for_the_context_says_both_numbers(served: Served) -> None:
    for body in ({"prompt": [5] * 70}, {"prompt": "word " * 70}, {"prompt": "word " * 100_000}):
        status, error = served.error(COMPLETIONS, body)
        assert status == 400
        assert error["code"] == "context_length_exceeded", error
        assert "64" in error["message"]
    status, error = served.error(CHAT, {"messages": [{"role": "user", "content": "word " * 70}]})
    assert (status, error["code"]) == (400, "context_length_exceeded")


@pytest.mark.parametrize("stream", [False, True])
def test_what_only_the_engine_can_refuse_is_refused_with_its_status(
    served: Served, stream: bool
) -> None:
    status, error = served.error(COMPLETIONS, {"prompt": "x", "n": 5, "stream": stream})
    assert status == 400
    assert "max_num_seqs" in error["message"]
    status, error = served.error(COMPLETIONS, {"prompt": [1 << 40], "stream": stream})
    assert status == 400
    assert "vocabulary" in error["message"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[1]",
        b'"x"',
        b"null",
        b'{"prompt":"\xff"}',
        b'{"prompt":"\\ud800"}',
        b'{"\xff":1}',
        b'{"prompt":NaN}',
        b'{"prompt":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b"[" * 1_000_000,
        b'{"prompt":"x","metadata":{"a":' + b"[" * 100_000,
        b'{"prompt":"x","temperature":1e999}',
        b"\xff\xfe{}",
    ],
    ids=lambda body: repr(body[:20]),
)
def test_what_is_no_request_is_refused(served: Served, body: bytes) -> None:
    assert served.error(COMPLETIONS, body)[0] == 400


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {"prompt": "x" * (1 << 20) + "x"}, "prompt"),
        ("/tokenize", {"messages": [{"role": "user", "content": "x" * (1 << 22)}]}, "messages"),
        ("/tokenize", {"messages": MESSAGES * 4097}, "messages"),
        ("/detokenize", {"tokens": [1] * (1 << 20) + [1]}, "tokens"),
        (COMPLETIONS, {"prompt": "x" * (1 << 21), "truncate_prompt_tokens": 4}, "prompt"),
        (COMPLETIONS, {"prompt": "x", "bad_words": ["x" * 1025]}, "bad_words[0]"),
        (CHAT, {"messages": [{"role": "user", "content": "x" * (1 << 22)}]}, "messages"),
        (
            CHAT,
            {
                "messages": [{"role": "user", "content": "x" * (1 << 22)}],
                "truncate_prompt_tokens": 4,
            },
            "messages",
        ),
        (CHAT, {"messages": MESSAGES * 4097}, "messages"),
        (CHAT, {"messages": MESSAGES, "tools": [{"type": "function"}] * 1025}, "tools"),
    ],
)
def test_text_that_would_keep_the_tokenizer_busy_is_refused(
    served: Served, path: str, body: dict[str, Any], param: str
) -> None:
    status, error = served.error(path, body)
    assert status == 400
    assert error["param"] == param, error


def test_a_text_of_the_greatest_length_is_tokenised(served: Served) -> None:
    body = {"prompt": "x" * (1 << 20), "return_token_strs": True, "add_special_tokens": False}
    status, found = served.ask("POST", "/tokenize", body)[:2]
    assert (status, found["count"]) == (200, len(found["tokens"]))
    assert "".join(found["token_strs"]) == body["prompt"]
    status, found = served.ask("POST", "/detokenize", {"tokens": found["tokens"]})[:2]
    assert found["prompt"] == body["prompt"]


def test_json_that_a_template_might_not_stand_is_refused(served: Served) -> None:
    deep: Any = []
    for _ in range(100):
        deep = [deep]
    body = {"messages": MESSAGES, "chat_template_kwargs": {"x": deep}}
    assert served.error(CHAT, body)[1]["param"] == "chat_template_kwargs"
    body = {"messages": MESSAGES, "documents": [{"x": deep}]}
    assert served.error(CHAT, body)[1]["param"] == "documents"


def test_messages_are_short_whatever_was_sent(served: Served) -> None:
    name = "\N{SNOWMAN}" * 3000
    assert served.error(COMPLETIONS, {"prompt": "x", name: 1})[0] == 400
    assert served.error(COMPLETIONS, {"prompt": "x", "model": name})[0] == 404
    assert served.error(COMPLETIONS, {"prompt": "x", "user": "\x1b[31m\n", name: 1})[0] == 400


def test_paths_and_methods_that_are_not_there(served: Served) -> None:
    for method, path, status in (
        ("GET", "/nothing", 404),
        ("GET", COMPLETIONS, 405),
        ("POST", "/health", 405),
        ("DELETE", "/v1/models", 405),
    ):
        found = served.ask(method, path)
        assert found[0] == status
        assert found[1]["error"]["message"]


def test_openai_s_client_raises_what_it_is(served: Served) -> None:
    address = f"{served.address}/v1"
    with openai.OpenAI(base_url=address, api_key="x", max_retries=0) as client:
        with pytest.raises(openai.BadRequestError, match="temperature") as raised:
            client.completions.create(model="demo", prompt="x", temperature=-3)
        assert raised.value.param == "temperature"
        with pytest.raises(openai.NotFoundError):
            client.completions.create(model="other", prompt="x")


def test_two_requests_of_one_id_at_once(served: Served) -> None:
    with served.connect() as first:
        body = b'{"prompt":"x","request_id":"one","ignore_eos":true,"stream":true,"max_tokens":60}'
        first.sendall(
            b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n"
            % len(body)
            + body
        )
        assert first.recv(100)
        status, error = served.error(COMPLETIONS, {"prompt": "x", "request_id": "one"})
        assert status in (200, 400)
        assert "own id" in error["message"]


def test_answers_that_end_with_an_error_have_no_done(served: Served) -> None:
    body = {"prompt": "x", "stream": True, "deadline": 1e-9}
    status, error = served.error(COMPLETIONS, body)
    assert (status, error["code"]) == (504, "deadline_exceeded")
    assert events("") == []


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "values", "param"),
    [
        (COMPLETIONS, {"prompt": [-1]}, "prompt"),
        (COMPLETIONS, {"prompt": [1 << 30]}, "prompt"),
        (COMPLETIONS, {"prompt": "x " * 4000}, "prompt"),
        (CHAT, {"messages": [{"role": "user", "content": "x " * 4000}]}, "messages"),
        (CHAT, {"messages": MESSAGES, "max_completion_tokens": 1 << 70}, "max_completion_tokens"),
        (
            CHAT,
            {
                "messages": MESSAGES,
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": {"not": {}}},
                },
            },
            "response_format",
        ),
        (
            CHAT,
            {
                "messages": MESSAGES,
                "tools": [
                    {"type": "function", "function": {"name": "f", "parameters": {"not": {}}}}
                ],
                "tool_choice": "required",
            },
            "tools",
        ),
        (COMPLETIONS, {"prompt": "x", "structured_outputs": {"regex": "("}}, "structured_outputs"),
    ],
)
def test_the_field_that_was_sent_is_named_in_a_stream_too(
    served: Served, path: str, values: dict[str, Any], param: str, *, stream: bool
) -> None:
    status, error = served.error(path, {**values, "stream": stream})
    assert (status, error["param"]) == (400, param), error
    if "structured" not in param:
        assert "structured_outputs" not in error["message"]
