"""Requests of all APIs that are refused, in one table: the answer names the field."""

from __future__ import annotations

import re
import tracemalloc
from collections.abc import Iterator
from datetime import UTC
from typing import Any

import anthropic
import msgspec
import pytest

from paged_plugins.server.errors import ApiError
from paged_plugins.server.http.endpoint import decode
from paged_plugins.server.openai.protocol import CompletionRequest
from server.served import Served, ask

pytestmark = pytest.mark.heavy

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
SAID: Any = [{"role": "user", "content": "x"}]
REQUIRED: dict[str, dict[str, Any]] = {
    COMPLETIONS: {"prompt": "x"},
    CHAT: {"messages": SAID},
    RESPONSES: {"input": "x"},
    MESSAGES: {"messages": SAID, "max_tokens": 1},
    "/tokenize": {},
    "/detokenize": {},
}
GENERATES = (COMPLETIONS, CHAT, RESPONSES, MESSAGES)
TOOL: Any = {"type": "function", "function": {"name": "f"}}
NAMED: Any = {"type": "function", "name": "f"}
SENT: Any = {"name": "f", "input_schema": {}}
SEARCH = {"type": "web_search_20250305", "name": "x"}
CUSTOM = {"type": "custom", "custom": {"name": "patch"}}
USE = {"type": "tool_use", "id": "1", "name": "f"}
REFUSAL: Any = [{"type": "refusal", "refusal": "x"}]
BROKEN = {"id": "1", "function": {"name": "f", "arguments": "no"}}


def deep(levels: int) -> dict[str, Any]:
    """An object in so many others."""
    made: dict[str, Any] = {}
    for _ in range(levels):
        made = {"a": made}
    return made


WIDE = {"type": "object", "properties": {f"a{n}": {} for n in range(3000)}, "required": []}


def user(content: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}]}


def schema(value: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": value}}


FIELDS: dict[str, list[tuple[dict[str, Any], str | None, str]]] = {
    COMPLETIONS: [
        ({"temperature": "hot"}, "temperature", "xpected"),
        ({"top_p": -0.1}, "top_p", ""),
        ({"n": 1 << 70}, "n", ""),
        ({"n": 9}, "n", "server.max_choices"),
        ({"n": 5}, None, "max_num_seqs"),
        ({"max_tokens": 0}, "max_tokens", "nothing is echoed"),
        ({"logprobs": 21}, "logprobs", "server.max_logprobs"),
        ({"logit_bias": {"x": 1}}, "logit_bias", ""),
        ({"stop": [""]}, "stop", ""),
        ({"stop": [1]}, "stop[0]", ""),
        ({"stop": ["x"] * 65}, "stop", ""),
        ({"bad_words": ["x"] * 65}, "bad_words", ""),
        ({"bad_words": ["x" * 1025]}, "bad_words[0]", ""),
        ({"stream": False, "prompt_logprobs": -1}, "prompt_logprobs", ""),
        ({"stream": False, "stream_options": {}}, "stream_options", "set stream to true"),
        ({"stream": True, "best_of": 2}, "best_of", "nothing to stream"),
        ({"stream": True, "stream_options": {"usage": True}}, "stream_options.usage", "no field"),
        ({"stream": True, "use_beam_search": True}, "use_beam_search", "nothing to stream"),
        ({"stream": False, "use_beam_search": True, "temperature": 0.5}, "temperature", ""),
        ({"deadline": 0}, "deadline", "more than 0 seconds"),
        ({"suffix": "the end. " * 300}, "suffix", "...; texts are not filled in between others"),
        ({"prompt": []}, "prompt", "is empty"),
        ({"prompt": [[]]}, "prompt", "is empty"),
        ({"prompt": [1, "a"]}, "prompt", "must be a text, token ids"),
        ({"prompt": [-1]}, "prompt", ""),
        ({"prompt": ["a"] * 9}, "prompt", "server.max_choices"),
        ({"prompt": None}, "prompt", "got `null`"),
        ({"prompt": [5] * 70}, "prompt", "64"),
        ({"prompt": "word " * 100_000}, "prompt", "64"),
        ({"prompt": "x" * (1 << 21), "truncate_prompt_tokens": 4}, "prompt", "less at a time"),
        ({"guided_json": {}}, "guided_json", "use response_format"),
        ({"response_format": {"type": "xml"}}, "response_format.type", "text, json_object or"),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs", "cannot be compiled"),
        ({"request_id": ""}, "request_id", "1 to 128"),
        ({"nonsense": 1}, "nonsense", "/openapi.json"),
    ],
    CHAT: [
        ({"messages": []}, "messages", "at least one message"),
        ({"messages": "x"}, "messages", ""),
        ({"messages": [{"role": "king", "content": "x"}]}, "messages[0].role", ""),
        ({"messages": [{"content": "x"}]}, "messages[0].role", "is missing"),
        ({"messages": [{**SAID[0], "mood": 1}]}, "messages[0].mood", "no field"),
        ({"messages": SAID * 4097}, "messages", "4096"),
        ({"messages": [{"role": "assistant", "tool_calls": [BROKEN]}]}, "messages", "no JSON"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"id": "1"}]}]},
            "messages",
            "has no function",
        ),
        *(
            (user([{"type": kind}]), "messages[0].content[0].type", "only text is served")
            for kind in ("image_url", "input_audio", "file", "video_url", "any thing")
        ),
        ({"modalities": ["audio"]}, "modalities[0]", "only text is served"),
        ({"audio": {}}, "audio", "no field"),
        (user("word " * 70), "messages", "64"),
        (user("x" * (1 << 22)), "messages", ""),
        ({**user("x" * (1 << 22)), "truncate_prompt_tokens": 4}, "messages", "less at a time"),
        ({"top_logprobs": 2}, "top_logprobs", "needs logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "from 0 to 20"),
        ({"max_completion_tokens": 0}, "max_completion_tokens", "at least 1"),
        (
            {"max_tokens": 5, "max_completion_tokens": 1 << 63},
            "max_completion_tokens",
            "max_completion_tokens must be at most",
        ),
        *(
            ({"chat_template_kwargs": {name: 1}}, "chat_template_kwargs", "no option of a template")
            for name in ("messages", "tools", "tokenize", "chat_template")
        ),
        ({"chat_template": "{{ 1 }}"}, "chat_template", "no field"),
        ({"chat_template_kwargs": {"x": deep(70)}}, "chat_template_kwargs", "nested deeper"),
        ({"documents": [{"x": deep(70)}]}, "documents", "nested deeper"),
        ({"response_format": {"type": "text", "x": 1}}, "response_format.x", "no field"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}},
            "response_format.json_schema",
            "has no schema",
        ),
        (
            {"response_format": schema({"not": {}})},
            "response_format",
            "Unsatisfiable schema",
        ),
        (
            {"response_format": schema({"not": {"const": 1}})},
            "response_format",
            'Unimplemented keys: ["not"]',
        ),
        ({"response_format": schema(WIDE)}, "response_format", "too large: an object has 3000"),
        ({"response_format": schema(False)}, "response_format", "Unsatisfiable schema"),
        ({"response_format": schema(None)}, "response_format.json_schema", "has no schema"),
        ({"response_format": schema(5)}, "response_format.json_schema.schema", "is an object"),
        (
            {"structured_outputs": {"regex": "a", "choice": ["a"]}},
            "structured_outputs",
            "has regex",
        ),
        ({"structured_outputs": {"yaml": "a"}}, "structured_outputs", "no field 'yaml'"),
        (
            {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
            "structured_outputs",
            "give one",
        ),
        ({"tools": [TOOL]}, "tools", "start the server with --tool-parser"),
        ({"tools": [NAMED]}, "tools.0.function", "is missing: it is an object with the name"),
        ({"functions": [{"name": "f"}], "tools": [TOOL]}, "functions", "give one"),
        ({"functions": [{"name": "f g"}]}, "functions.0.name", "1 to 128"),
        ({"functions": [{"name": "f"}] * 1025}, "functions", "1024"),
        ({"functions": [{"name": "f"}], "function_call": "any"}, "function_call", "none, auto, or"),
        ({"function_call": {"name": "f"}}, "function_call", "there is none"),
        ({"tools": [CUSTOM], "tool_choice": "required"}, "tool_choice", "cannot run are left out"),
        (
            {"tools": [CUSTOM, TOOL], "tool_choice": CUSTOM},
            "tool_choice",
            "cannot run are left out",
        ),
        ({"tools": [SENT]}, "tools.0.type", "must be function, and tools.0.function an object"),
        (
            {"response_format": {"type": "json_schema", "name": "a", "schema": {}}},
            "response_format.json_schema",
            "an object with the name",
        ),
        ({"tools": [{"type": "function"}] * 1025}, "tools", "1024"),
        ({"tools": [{"type": "code"}]}, "tools.0.type", "web_search"),
        (user(REFUSAL), "messages.0.content", "for messages of the assistant"),
        ({"tools": [{**TOOL, "function": {}}]}, "tools.0.function.name", "1 to 128"),
        ({"tools": [TOOL] * 2}, "tools.1.function.name", "two of the tools"),
        ({"tool_choice": "required"}, "tool_choice", "there is none in tools"),
        ({"tools": [TOOL], "tool_choice": "any"}, "tool_choice", "tool_choice must be none"),
        (
            {"tools": [TOOL], "tool_choice": {**TOOL, "function": {"name": "x"}}},
            "tool_choice",
            "names 'x', which is no tool",
        ),
        (
            {"tools": [TOOL], "structured_outputs": {"regex": "a"}},
            "structured_outputs",
            "leaves no room for tools",
        ),
        (
            {"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "allowed_tools": {}}},
            "tool_choice",
            "allowed_tools must be",
        ),
        (
            {
                "tools": [{**TOOL, "function": {"name": "f", "parameters": {"not": {}}}}],
                "tool_choice": "required",
            },
            "tools",
            "",
        ),
    ],
    RESPONSES: [
        ({"functions": []}, "functions", "use tools"),
        ({"previous_response_id": "resp_1"}, "previous_response_id", "nothing is stored"),
        ({"conversation": "conv_1"}, "conversation", "nothing is stored"),
        ({"background": True}, "background", "background"),
        ({"n": 2}, "n", "no field"),
        ({"input": []}, "input", "input is empty"),
        (
            {"input": [{"type": "item_reference"}]},
            "input[0].type",
            "set store to false in the client",
        ),
        ({"input": [{"content": "x"}]}, "input.0.role", "is missing"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input[0].content[0].type",
            "only text is served",
        ),
        (
            {"input": [{"type": "function_call", "call_id": "1", "name": "f", "arguments": "no"}]},
            "input",
            "no JSON",
        ),
        ({"tools": [{"type": "websearch"}]}, "tools.0.type", "must be function"),
        ({"tools": [TOOL]}, "tools.0", "beside its type"),
        ({"text": {"format": {"type": "json_schema", "json_schema": {}}}}, "text.format", "beside"),
        ({"tools": [{**NAMED, "parameters": deep(70)}]}, "tools", "nested deeper"),
        (
            {"tools": [NAMED], "tool_choice": {"type": "mcp"}},
            "tool_choice",
            '"type": "function", "name": ...}; tools that this server cannot run are left out',
        ),
        ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "text.format", "no schema"),
        (
            {"text": {"format": {"type": "json_schema", "name": "a", "schema": WIDE}}},
            "text.format",
            "text.format cannot be compiled",
        ),
        ({"text": {"format": {"type": "yaml"}}}, "text.format.type", "must be text"),
        (
            {"text": {"format": {"type": "json_schema", "schema": deep(70)}}},
            "text.format",
            "nested deeper",
        ),
        ({"include": ["message.output_text.logprob"]}, "include[0]", "it may be code_interpreter"),
        (
            {"input": [{"type": "compaction", "encrypted_content": "x"}]},
            "input",
            "nothing that the model can read: compaction is skipped",
        ),
        ({"input": [{"role": "user", "content": REFUSAL}]}, "input.0.content", "the assistant"),
    ],
    MESSAGES: [
        ({"tools": [TOOL]}, None, "give the name, description and input_schema"),
        ({"tools": [{"name": "f", "parameters": {}}]}, None, "use input_schema"),
        ({"container": "x"}, None, "container is no field"),
        ({"thread": {"type": "continue"}}, None, "thread: nothing is stored"),
        ({"messages": []}, None, "messages is empty"),
        (user([{"type": "container_upload"}]), None, "container_upload is skipped here"),
        ({"max_tokens": 0}, None, "max_tokens must be at least 1"),
        (user([{"type": "image"}]), None, "only text is served"),
        *(
            (user([{"type": "document", "source": source}]), None, "only text is served: it may be")
            for source in ({"type": "url"}, {"media_type": "application/pdf"})
        ),
        (
            user([{"type": "thinking", "thinking": "x"}]),
            None,
            "messages.0.content.0: a thinking block is for messages of the assistant",
        ),
        (
            {"messages": [{"role": "assistant", "content": [{**USE, "input": deep(70)}]}]},
            None,
            "messages.0.content.0 is nested deeper",
        ),
        ({"tools": [{**SENT, "input_schema": deep(70)}]}, None, "tools is nested deeper"),
        ({"tools": [{"type": "web_search", "name": "web_search"}]}, None, "tools.0.type"),
        ({"tools": [{**SENT, "name": ""}], "tool_choice": {"type": "any"}}, None, "tools.0.name"),
        ({"tool_choice": {"type": "tool"}}, None, "tool_choice.name is for the type tool"),
        (
            {"tools": [SENT, SEARCH], "tool_choice": {"type": "tool", "name": "x"}},
            None,
            "names 'x', which is no tool; tools that this server cannot run are left out",
        ),
        (
            {"output_config": {"format": {"type": "json_schema"}}},
            None,
            "output_config.format.schema",
        ),
    ],
    "/tokenize": [
        ({}, "prompt", "either prompt or messages"),
        ({"prompt": "x" * (1 << 20) + "x"}, "prompt", "less at a time"),
        (user("x" * (1 << 22)), "messages", ""),
        ({"messages": SAID * 4097}, "messages", "4096"),
    ],
    "/detokenize": [
        ({"tokens": [1] * (1 << 20) + [1]}, "tokens", ""),
        ({"tokens": [-1]}, "tokens", "no token of any model"),
    ],
}
"""By path: fields that are wrong, the one that is named, and a part of the message."""


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with Served({"max_choices": 8}, max_model_len=64, scheduler={"max_num_seqs": 4}) as served:
        yield served


def error_of(served: Served, path: str, body: Any) -> tuple[int, dict[str, Any]]:
    """Return the status and the error of an answer that is one, in the form of its API."""
    if path != MESSAGES:
        return served.error(path, body)
    status, found, _ = served.ask("POST", path, body)
    assert (set(found), found["type"]) == ({"type", "error"}, "error")
    assert set(found["error"]) - {"details"} == {"type", "message"}
    return status, {"param": None, "code": None, **found["error"]}


@pytest.mark.parametrize("path", FIELDS)
def test_a_wrong_field_is_named_whole_and_in_a_stream(served: Served, path: str) -> None:
    wrong = []
    for fields, param, said in FIELDS[path]:
        for stream in (False, True) if path in GENERATES else (None,):
            given = {} if stream is None else {"stream": stream}
            status, error = error_of(served, path, {**REQUIRED[path], **given, **fields})
            found = (status, error["type"], error["param"])
            is_said = said in error["message"]
            if param in ("response_format", "tools"):  # and not the field that stands for it
                is_said &= "structured_outputs" not in error["message"]
            if found != (400, "invalid_request_error", param) or not is_said:
                wrong.append((str(fields)[:80], stream, found, error["message"]))
    assert wrong == []
    served.wait_until_idle()


@pytest.mark.parametrize("path", GENERATES)
def test_what_all_apis_refuse(served: Served, path: str) -> None:
    body = REQUIRED[path]
    assert error_of(served, path, {**body, "model": "other"})[0] == 404
    status, error = error_of(served, path, {**body, "stream": True, "deadline": 1e-9})
    assert (status, error["code"]) == (504, None if path == MESSAGES else "deadline_exceeded")
    for name in ("\N{SNOWMAN}" * 3000, "\x1b[31m\n"):
        status, error = error_of(served, path, {**body, name: 1})
        assert status == 400, "and its message is short"
        assert len((error["param"] or "").encode()) <= 1024
    status, found, _ = served.ask("GET", path)
    assert (status, found["error"]["type"]) == (405, "invalid_request_error")
    served.wait_until_idle()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[1]",
        b'"x"',
        b"null",
        b'{"prompt":"\xff"}',
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
    for path in GENERATES:
        assert error_of(served, path, body)[0] == 400, path


def test_null_is_the_same_as_leaving_any_field_out(served: Served) -> None:
    nulls = dict.fromkeys(("functions", "prediction", "guided_json", "temperature", "nonsense"))
    body = {"messages": SAID, "max_tokens": 1, "logit_bias": {"5": 1.5}, **nulls}
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


def test_too_long_for_the_context_has_a_code_and_the_words_that_clients_know(
    served: Served,
) -> None:
    asked: list[tuple[str, dict[str, Any]]] = [(COMPLETIONS, {"prompt": [5] * 70})]
    for text in ("word " * 70, "word " * 100_000):
        asked += [(CHAT, user(text)), (RESPONSES, {"input": text})]
        message = error_of(served, MESSAGES, {**user(text), "max_tokens": 1})[1]["message"]
        assert re.match(r"prompt is too long: (about )?\d+ tokens > 64 maximum$", message)
    for path, body in asked:
        error = served.error(path, body)[1]
        assert error["code"] == "context_length_exceeded"
        assert error["message"].startswith("This model's maximum context length is 64 tokens, and")


def test_messages_list_what_is_allowed_in_the_words_of_json(served: Served) -> None:
    for path, body, said in (
        (
            CHAT,
            {"messages": [{"role": "king"}]},
            "it may be assistant, developer, function, system",
        ),
        (CHAT, {**user("x"), "reasoning_effort": "most"}, "it may be high, low, max"),
        (MESSAGES, {**user([{"type": "txt"}]), "max_tokens": 1}, "it may be text, document"),
        (MESSAGES, {**user("x"), "max_tokens": 1, "thinking": {"type": "on"}}, "disabled, enabled"),
        (RESPONSES, {"input": [{"type": "massage"}]}, "it may be additional_tools, "),
        (COMPLETIONS, {"prompt": "x", "structured_outputs": {"choice": True}}, "not true"),
    ):
        message = error_of(served, path, body)[1]["message"]
        assert said in message, message
        assert "True" not in message


def test_a_text_of_the_greatest_length_is_tokenised(served: Served) -> None:
    body = {"prompt": "x" * (1 << 20), "return_token_strs": True, "add_special_tokens": False}
    status, found = served.ask("POST", "/tokenize", body)[:2]
    assert (status, found["count"]) == (200, len(found["tokens"]))
    assert "".join(found["token_strs"]) == body["prompt"]
    status, found = served.ask("POST", "/detokenize", {"tokens": found["tokens"]})[:2]
    assert found["prompt"] == body["prompt"]


def test_paths_and_methods_that_are_not_there(served: Served) -> None:
    for method, path, status in (
        ("GET", "/nothing", 404),
        ("POST", "/health", 405),
        ("DELETE", "/v1/models", 405),
    ):
        found = served.ask(method, path)
        assert found[0] == status
        assert found[1]["error"]["message"]
    version = {"anthropic-version": "2023-06-01"}
    for path, headers in (
        (f"{MESSAGES}/batches", {}),
        ("/v1/nothing", version),
        ("/v1/models/nothing", version),
    ):
        status, found, answered = ask(
            served.port, "POST" if not headers else "GET", path, headers=headers
        )
        assert (status, found["type"], found["error"]["type"]) == (404, "error", "not_found_error")
        assert answered["request-id"] == answered["x-request-id"]


def test_clients_of_anthropic_s_api_find_the_models(served: Served) -> None:
    client = anthropic.Anthropic(base_url=served.address, api_key="none", max_retries=0)
    page = client.models.list()
    (model,) = page.data
    assert (page.first_id, page.last_id, page.has_more) == (model.id, model.id, False)
    assert (model.type, model.display_name, model.created_at.tzinfo) == ("model", model.id, UTC)
    assert client.models.retrieve(model.id) == model
    assert "type" not in served.ask("GET", "/v1/models")[1]["data"][0]
    answer = client.messages.with_raw_response.create(model=model.id, max_tokens=1, messages=SAID)
    assert answer.http_response.headers["request-id"]
