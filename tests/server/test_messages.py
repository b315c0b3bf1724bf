"""The client of Anthropic gets what chat completions give, whole and as events."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import jsonschema
import msgspec
import pytest
from anthropic.types import Message, RawMessageStreamEvent
from pydantic import TypeAdapter

from paged_plugins.server.anthropic.protocol import AnyEvent
from server.served import Served, ask, wait_until
from server.streams import message_of, named_events
from server.test_formats import SCHEMA, bias_to
from server.test_holding_up import LONG, open_request, read_until

PATH = "/v1/messages"
MESSAGES: Any = [{"role": "user", "content": "What is the weather in Paris?"}]
TOOLS: Any = [
    {"name": "weather", "description": "of a city", "input_schema": SCHEMA},
    {"name": "now", "input_schema": {"type": "object", "additionalProperties": False}},
]
CALL: Any = {"tools": TOOLS, "tool_choice": {"type": "tool", "name": "weather"}}
ASKED: Any = {"model": "demo", "messages": MESSAGES, "max_tokens": 200}
GREEDY: Any = {"extra_body": {"temperature": 0}}
ENDLESS = {"messages": MESSAGES, "stream": True, "ignore_eos": True, "max_tokens": 900}
EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)


USE = {"type": "tool_use", "id": "1", "name": "now"}


def deep(levels: int) -> dict[str, Any]:
    """An object in so many others."""
    made: dict[str, Any] = {}
    for _ in range(levels):
        made = {"a": made}
    return made


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with Served() as served:
        yield served


@pytest.fixture(scope="module")
def client(served: Served) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=served.address, api_key="none", max_retries=0) as client:
        yield client


def streamed(served: Served, **body: Any) -> dict[str, Any]:
    """The message that a stream makes, whose events are as the document and the client say."""
    asked = {"messages": MESSAGES, "max_tokens": 200, "stream": True, **body}
    status, text, _ = served.ask("POST", PATH, asked, {"anthropic-version": "2023-06-01"})
    assert status == 200, text
    events = named_events(text)
    for name, event in events:
        assert event["type"] == name
        msgspec.convert(event, AnyEvent)
        if name != "ping":
            EVENT.validate_python(event)
    return message_of([event for _, event in events])


def error(served: Served, body: Any, path: str = PATH) -> tuple[int, dict[str, Any]]:
    """The status and the error of an answer that is one, as Anthropic's are."""
    status, found, _ = served.ask("POST", path, body)
    assert set(found) == {"type", "error"}
    assert found["type"] == "error"
    assert set(found["error"]) == {"type", "message"}
    return status, found["error"]


# ---------------------------------------------------------------------- text


def test_a_message_is_what_a_chat_gives(served: Served, client: anthropic.Anthropic) -> None:
    chat = {"messages": [{"role": "system", "content": "Be\nbrief."}, *MESSAGES], "temperature": 0}
    whole = served.ask("POST", "/v1/chat/completions", {**chat, "max_tokens": 8})[1]
    text = whole["choices"][0]["message"]["content"]
    system: Any = [{"type": "text", "text": word} for word in ("Be", "brief.")]
    system[1]["cache_control"] = {"type": "ephemeral"}
    asked = {**ASKED, "max_tokens": 8, "system": system}
    made = client.messages.create(**asked, **GREEDY)
    Message.model_validate(made.model_dump())
    assert [block.to_dict() for block in made.content] == [
        {"type": "text", "text": text, "citations": None}
    ]
    assert made.stop_reason == "max_tokens"
    usage = made.usage
    assert usage.cache_read_input_tokens is not None
    assert usage.input_tokens + usage.cache_read_input_tokens == whole["usage"]["prompt_tokens"]
    assert usage.output_tokens == 8
    assert streamed(served, system=system, max_tokens=8, temperature=0)["content"] == [
        {"type": "text", "text": text, "citations": None}
    ]
    with client.messages.stream(**asked, **GREEDY) as stream:
        assert "".join(stream.text_stream) == text
        assert stream.get_final_message().stop_reason == "max_tokens"


def test_why_a_message_ends(served: Served, client: anthropic.Anthropic) -> None:
    schema: Any = {"format": {"type": "json_schema", "schema": SCHEMA}}
    made = client.messages.create(**ASKED, output_config=schema)
    assert made.stop_reason == "end_turn"
    assert made.content[0].type == "text"
    jsonschema.validate(json.loads(made.content[0].text), SCHEMA)
    stops = {"stop_sequences": ["e"], "structured_outputs": {"regex": "abcdef"}}
    made = client.messages.create(**ASKED, extra_body=stops)
    assert (made.stop_reason, made.stop_sequence) == ("stop_sequence", "e")
    assert made.content[0].to_dict()["text"] == "abcd"
    same = streamed(served, **stops)
    assert (same["stop_reason"], same["stop_sequence"]) == ("stop_sequence", "e")


def test_the_assistant_s_last_words_are_continued(served: Served) -> None:
    begun = [*MESSAGES, {"role": "assistant", "content": "It is"}]
    body = {"messages": begun, "max_tokens": 6, "temperature": 0}
    chat = {**body, "continue_final_message": True}
    whole = served.ask("POST", "/v1/chat/completions", chat)[1]["choices"][0]["message"]
    assert served.ask("POST", PATH, body)[1]["content"][0]["text"] == whole["content"]


@pytest.mark.parametrize(
    "content",
    [
        [],
        "",
        [{"type": "thinking", "thinking": "x"}],
        [{"type": "text", "text": "x"}, {**USE, "input": {}}],
    ],
)
def test_last_words_that_are_none_are_not_continued(served: Served, content: Any) -> None:
    messages = [*MESSAGES, {"role": "assistant", "content": content}]
    body = {"messages": messages, "max_tokens": 1}
    assert served.ask("POST", PATH, body)[0] == 200
    assert served.ask("POST", f"{PATH}/count_tokens", {"messages": messages})[0] == 200


def test_tokens_are_counted(client: anthropic.Anthropic) -> None:
    for said in ({}, {"system": "Be brief."}):
        made = client.messages.create(**{**ASKED, "max_tokens": 1}, **said, **GREEDY)
        counted = client.messages.count_tokens(model="demo", messages=MESSAGES, **said)
        cached = made.usage.cache_read_input_tokens or 0
        assert counted.input_tokens == made.usage.input_tokens + cached


def test_cached_tokens_are_told(served: Served) -> None:
    asked = {"messages": [{"role": "user", "content": "a block " * 60}], "max_tokens": 1}
    served.ask("POST", PATH, asked)
    usage = served.ask("POST", PATH, asked)[1]["usage"]
    assert usage["cache_read_input_tokens"] > 0
    assert usage == {**streamed(served, **asked)["usage"], "output_tokens": 1}


# ---------------------------------------------------------------------- calls and thoughts


def test_a_call_and_what_it_gave(served: Served, client: anthropic.Anthropic) -> None:
    made = client.messages.create(**ASKED, **CALL, **GREEDY)
    (call,) = made.content
    assert call.type == "tool_use"
    assert made.stop_reason == "tool_use"
    jsonschema.validate(call.input, SCHEMA)
    (same,) = streamed(served, **CALL, temperature=0)["content"]
    assert (same["name"], json.loads(same["input"])) == ("weather", call.input)
    any_tool: Any = {"type": "any", "disable_parallel_tool_use": True}
    with client.messages.stream(**ASKED, tools=TOOLS, tool_choice=any_tool) as stream:
        final = stream.get_final_message()
    assert final.stop_reason == "tool_use"
    (use,) = final.content
    assert use.type == "tool_use"
    result: Any = [
        {"type": "tool_result", "tool_use_id": use.id, "content": "none", "is_error": True},
        {"type": "text", "text": "So?"},
    ]
    messages = [*MESSAGES, final.to_param(), {"role": "user", "content": result}]
    after = client.messages.create(
        model="demo", max_tokens=4, messages=messages, tools=TOOLS, tool_choice={"type": "none"}
    )
    assert after.content[0].type == "text"


def test_a_call_that_is_cut_is_given_as_far_as_it_came(served: Served) -> None:
    body = {**CALL, "max_tokens": 30, "temperature": 0}
    whole = served.ask("POST", PATH, {"messages": MESSAGES, **body})[1]
    assert whole["stop_reason"] == "max_tokens"
    text = streamed(served, **body)["content"][0]["input"]
    with pytest.raises(ValueError, match=r"Expecting|Unterminated"):
        json.loads(text)
    assert isinstance(whole["content"][0]["input"], dict)


@pytest.mark.parametrize("stream", [False, True])
def test_thoughts_are_a_block(*, stream: bool) -> None:
    with Served(reasoning_parser="deepseek_r1") as served:
        form = {"regex": "[a-z]{3}</think>[0-9]{2}", "after": "A"}
        asked = {"structured_outputs": form, "logit_bias": bias_to(served, "A"), "temperature": 0}
        asked["thinking"] = {"type": "enabled", "budget_tokens": 1024}
        if stream:
            made = streamed(served, **asked)
        else:
            made = served.ask("POST", PATH, {"messages": MESSAGES, "max_tokens": 99, **asked})[1]
        thoughts, text = made["content"]
        assert thoughts["type"] == "thinking"
        assert thoughts["thinking"].startswith("A")
        assert len(text["text"]) == 2
        thinking = made["usage"]["output_tokens_details"]["thinking_tokens"]
        assert 0 < thinking < made["usage"]["output_tokens"]
        again = [*MESSAGES, {"role": "assistant", "content": made["content"]}, *MESSAGES]
        assert served.ask("POST", PATH, {"messages": again, "max_tokens": 2})[0] == 200


# ---------------------------------------------------------------------- errors and endings


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"container": "x"}, "container is no field"),
        ({"mcp_servers": []}, "mcp_servers is no field"),
        ({"n": 2}, "n is no field"),
        ({"messages": []}, "messages is empty"),
        ({"max_tokens": 0}, "max_tokens must be at least 1"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "only text is served"),
        (
            {"messages": [{"role": "user", "content": [{"type": "thinking", "thinking": "x"}]}]},
            "messages.0.content.0: a thinking block is for messages of the assistant",
        ),
        (
            {"messages": [{"role": "assistant", "content": [{**USE, "input": deep(70)}]}]},
            "messages.0.content.0 is nested deeper",
        ),
        ({"tools": [{**TOOLS[0], "input_schema": deep(70)}]}, "tools is nested deeper"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0]"),
        ({"tools": [{**TOOLS[0], "name": ""}], "tool_choice": {"type": "any"}}, "tools.0.name"),
        ({**CALL, "tool_choice": {"type": "tool"}}, "tool_choice.name is for the type tool"),
        ({**CALL, "tool_choice": {"type": "tool", "name": "x"}}, "names 'x', which is no tool"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
    ],
)
def test_what_is_not_served_is_refused_by_name(
    served: Served, options: dict[str, Any], said: str
) -> None:
    status, found = error(served, {"messages": MESSAGES, "max_tokens": 1, **options})
    assert (status, found["type"]) == (400, "invalid_request_error")
    assert said in found["message"]


def test_errors_of_all_paths_are_anthropic_s(served: Served) -> None:
    for path in (PATH, f"{PATH}/count_tokens"):
        status, found = error(served, {"messages": MESSAGES, "model": "x", "max_tokens": 1}, path)
        if path == PATH:
            assert (status, found["type"]) == (404, "not_found_error")
        status, found = error(served, b"{", path)
        assert (status, found["type"]) == (400, "invalid_request_error")
        status, whole, _ = ask(served.port, "GET", path)
        assert (status, whole["error"]["type"]) == (405, "invalid_request_error")
        headers = {"host": "elsewhere.example"}
        status, whole, _ = served.ask("POST", path, {}, headers)
        assert (status, whole["type"]) == (421, "error")
    assert "error" in served.ask("POST", "/v1/chat/completions", {})[1], "and others are OpenAI's"


def test_the_document_says_whose_the_errors_are(served: Served) -> None:
    document = served.ask("GET", "/openapi.json")[1]
    for path, operations in document["paths"].items():
        for operation in operations.values():
            schema = operation["responses"]["500"]["content"]["application/json"]["schema"]
            name = "AnthropicError" if path.startswith(PATH) else "ErrorAnswer"
            assert schema == {"$ref": f"#/components/schemas/{name}"}


def test_a_key_may_be_sent_as_anthropic_s_client_does(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("secret\n")
    with Served({"api_key_file": str(keys)}) as served:
        options: Any = {"base_url": served.address, "max_retries": 0}
        with anthropic.Anthropic(api_key="secret", **options) as client:
            assert client.messages.create(**{**ASKED, "max_tokens": 1}).content
        with (
            anthropic.Anthropic(api_key="other", **options) as client,
            pytest.raises(anthropic.AuthenticationError) as raised,
        ):
            client.messages.create(**ASKED)
        assert raised.value.body["error"]["type"] == "authentication_error"  # type: ignore[index]


def test_an_aborted_message_ends_with_an_error(served: Served) -> None:
    with open_request(served, {**ENDLESS, "request_id": "this"}, PATH) as connection:
        begun = read_until(connection, b"text_delta")
        assert served.ask("POST", "/abort", {"request_id": "msg_this"})[1] == {"aborted": True}
        ended = begun + read_until(connection, b"0\r\n\r\n")
    assert ended.count(b"event: error\n") == 1
    assert b'{"type":"invalid_request_error","message":"the request was aborted"}' in ended
    assert b"message_stop" not in ended
    served.wait_until_idle()


def test_silence_is_filled_with_its_own_pings() -> None:
    with Served({"ping_interval": 0.05}, scheduler={"max_num_seqs": 1}) as served:
        with open_request(served, LONG) as first:
            read_until(first, b"data: ")
            with open_request(served, {**ENDLESS, "deadline": 0.5}, PATH) as second:
                ended = read_until(second, b"0\r\n\r\n")
        assert b'event: ping\ndata: {"type":"ping"}\n\n' in ended
        assert b'{"type":"timeout_error"' in ended


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_leaves_nothing(served: Served, *, stream: bool) -> None:
    with open_request(served, {**ENDLESS, "stream": stream}, PATH) as connection:
        wait_until(lambda: served.health().num_unfinished == 1, "it was not taken")
        if stream:
            read_until(connection, b"data: ")
    served.wait_until_idle()


def test_errors_are_those_of_the_client(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(**{**ASKED, "model": "other"})
    with pytest.raises(anthropic.BadRequestError, match="at least one message"):
        client.messages.create(**{**ASKED, "messages": []})
