"""Clients of Anthropic and of OpenAI's Responses API get what chat completions give."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import anthropic
import jsonschema
import msgspec
import openai
import pytest
from anthropic.types import Message, RawMessageStreamEvent
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from paged_plugins.server.anthropic import protocol as messages_api
from paged_plugins.server.openai.protocol import TokenLogprob
from paged_plugins.server.responses import protocol as responses_api
from paged_plugins.server.responses.events import tokens_of
from server.served import SCHEMA, Served, bias_to, open_request, read_until
from server.streams import message_of, named_events, response_of

pytestmark = pytest.mark.heavy

MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
PROMPT = "What is the weather in Paris?"
SAID: Any = [{"role": "user", "content": PROMPT}]
GREEDY: Any = {"extra_body": {"temperature": 0}}
ASKED: Any = {"model": "demo", "messages": SAID, "max_tokens": 200}
SENT: Any = [
    {"name": "weather", "description": "of a city", "input_schema": SCHEMA},
    {"name": "now", "input_schema": {"type": "object", "additionalProperties": False}},
]
NAMED: Any = [
    {"type": "function", "name": "weather", "description": "of a city", "parameters": SCHEMA},
    {"type": "function", "name": "now", "parameters": {"additionalProperties": False}},
]
CALL: dict[str, Any] = {
    MESSAGES: {"tools": SENT, "tool_choice": {"type": "tool", "name": "weather"}},
    RESPONSES: {"tools": NAMED, "tool_choice": {"type": "function", "name": "weather"}},
}
ENDLESS: dict[str, Any] = {
    MESSAGES: {"messages": SAID, "ignore_eos": True, "max_tokens": 900},
    RESPONSES: {"input": "x", "ignore_eos": True, "max_output_tokens": 900},
}
USE = {"type": "tool_use", "id": "1", "name": "now"}


@pytest.fixture(scope="module")
def claude(served: Served) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=served.address, api_key="none", max_retries=0) as client:
        yield client


EVENTS: dict[str, tuple[Any, TypeAdapter[Any], Any]] = {
    MESSAGES: (messages_api.AnyEvent, TypeAdapter(RawMessageStreamEvent), message_of),
    RESPONSES: (responses_api.AnyEvent, TypeAdapter(ResponseStreamEvent), response_of),
}


def streamed(served: Served, path: str, **body: Any) -> dict[str, Any]:
    """Answer that a stream makes, whose events are as the document and the client say."""
    asked = {"messages": SAID, "max_tokens": 200} if path == MESSAGES else {"input": PROMPT}
    status, text, _ = served.ask("POST", path, {**asked, "stream": True, **body})
    assert status == 200, text
    ours, theirs, made_of = EVENTS[path]
    events = named_events(text)
    for name, event in events:
        assert event["type"] == name
        msgspec.convert(event, ours)
        if name != "ping":
            theirs.validate_python(event)
    made: dict[str, Any] = made_of([event for _, event in events])
    return made


# ---------------------------------------------------------------------- text


def test_a_message_is_what_a_chat_gives(served: Served, claude: anthropic.Anthropic) -> None:
    chat = {"messages": [{"role": "system", "content": "Be\nbrief."}, *SAID], "temperature": 0}
    whole = served.ask("POST", "/v1/chat/completions", {**chat, "max_tokens": 8})[1]
    text = whole["choices"][0]["message"]["content"]
    system: Any = [{"type": "text", "text": word} for word in ("Be", "brief.")]
    system[1]["cache_control"] = {"type": "ephemeral"}
    asked = {**ASKED, "max_tokens": 8, "system": system}
    made = claude.messages.create(**asked, **GREEDY)
    Message.model_validate(made.model_dump())
    block = {"type": "text", "text": text}
    assert [each.to_dict() for each in made.content] == [block]
    usage = made.usage
    assert usage.cache_read_input_tokens is not None
    assert usage.input_tokens + usage.cache_read_input_tokens == whole["usage"]["prompt_tokens"]
    assert usage.output_tokens == 8
    same = streamed(served, MESSAGES, system=system, max_tokens=8, temperature=0)
    assert same["content"] == [block]
    with claude.messages.stream(**asked, **GREEDY) as stream:
        assert "".join(stream.text_stream) == text
        assert stream.get_final_message().stop_reason == made.stop_reason == "max_tokens"


def test_why_a_message_ends(served: Served, claude: anthropic.Anthropic) -> None:
    schema: Any = {"format": {"type": "json_schema", "schema": SCHEMA}}
    made = claude.messages.create(**ASKED, output_config=schema)
    assert made.stop_reason == "end_turn"
    assert made.content[0].type == "text"
    jsonschema.validate(json.loads(made.content[0].text), SCHEMA)
    stops = {"stop_sequences": ["e"], "structured_outputs": {"regex": "abcdef"}}
    made = claude.messages.create(**ASKED, extra_body=stops)
    assert (made.stop_reason, made.stop_sequence) == ("stop_sequence", "e")
    assert made.content[0].to_dict()["text"] == "abcd"
    same = streamed(served, MESSAGES, **stops)
    assert (same["stop_reason"], same["stop_sequence"]) == ("stop_sequence", "e")


def test_the_assistant_s_last_words_are_continued_if_there_are_some(served: Served) -> None:
    begun = [*SAID, {"role": "assistant", "content": "It is"}]
    body = {"messages": begun, "max_tokens": 6, "temperature": 0}
    chat = {**body, "continue_final_message": True}
    whole = served.ask("POST", "/v1/chat/completions", chat)[1]["choices"][0]["message"]
    assert served.ask("POST", MESSAGES, body)[1]["content"][0]["text"] == whole["content"]
    thought, text = {"type": "thinking", "thinking": "x"}, {"type": "text", "text": "x"}
    for content in ([], "", [thought], [text, {**USE, "input": {}}]):
        messages = [*SAID, {"role": "assistant", "content": content}]
        assert served.ask("POST", MESSAGES, {"messages": messages, "max_tokens": 1})[0] == 200
        count = f"{MESSAGES}/count_tokens"
        assert served.ask("POST", count, {"messages": messages})[0] == 200


def test_a_response_is_what_a_chat_gives(served: Served, client: openai.OpenAI) -> None:
    options: Any = {"model": "demo", "temperature": 0}
    messages: Any = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    chat = client.chat.completions.create(messages=messages, max_tokens=8, **options)
    asked: Any = {"input": "Hi", "instructions": "Be brief.", "max_output_tokens": 8, **options}
    made = client.responses.create(**asked)
    Response.model_validate(made.model_dump(), strict=False)
    assert made.output_text == chat.choices[0].message.content
    assert made.incomplete_details
    assert made.incomplete_details.reason == "max_output_tokens"
    assert made.instructions == "Be brief."
    assert chat.usage and made.usage
    assert made.usage.input_tokens == chat.usage.prompt_tokens
    assert made.usage.output_tokens == 8
    same = streamed(served, RESPONSES, **asked)
    assert same["output"][0]["content"][0]["text"] == made.output_text
    assert same["status"] == made.status == "incomplete"
    with client.responses.stream(**asked) as stream:
        assert [event.type for event in stream][-1] == "response.incomplete"


def test_a_response_that_stops_is_complete(client: openai.OpenAI) -> None:
    asked: Any = {"model": "demo", "input": "Hi", "text": {"format": {"type": "json_schema"}}}
    asked["text"]["format"] |= {"name": "weather", "schema": SCHEMA, "strict": True}
    made = client.responses.create(**asked)
    assert made.status == "completed"
    jsonschema.validate(json.loads(made.output_text), SCHEMA)
    with client.responses.stream(**asked) as stream:
        text = "".join(e.delta for e in stream if e.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert final.output_text == text
    assert final.output[0].status == "completed"
    jsonschema.validate(json.loads(text), SCHEMA)


def test_tokens_are_counted_and_those_of_the_cache_are_told(
    served: Served, claude: anthropic.Anthropic, client: openai.OpenAI
) -> None:
    for said in ({}, {"system": "Be brief."}):
        made = claude.messages.create(**{**ASKED, "max_tokens": 1}, **said, **GREEDY)
        counted = claude.messages.count_tokens(model="demo", messages=SAID, **said)
        cached = made.usage.cache_read_input_tokens or 0
        assert counted.input_tokens == made.usage.input_tokens + cached
    for asked in ({}, {"instructions": "Be brief."}, {"tools": NAMED, "tool_choice": "none"}):
        options: Any = {"model": "demo", "input": PROMPT, **asked}
        usage = client.responses.create(**options, max_output_tokens=1).usage
        assert usage
        assert client.responses.input_tokens.count(**options).input_tokens == usage.input_tokens
    long: Any = {"messages": [{"role": "user", "content": "a block " * 60}], "max_tokens": 1}
    served.ask("POST", MESSAGES, long)
    found = served.ask("POST", MESSAGES, long)[1]["usage"]
    assert found["cache_read_input_tokens"] > 0
    assert found == {**streamed(served, MESSAGES, **long)["usage"], "output_tokens": 1}
    body = {"input": "a block " * 60, "max_output_tokens": 1}
    found = served.ask("POST", RESPONSES, body)[1]["usage"]
    assert 0 < found["input_tokens_details"]["cached_tokens"] < found["input_tokens"]


def test_log_probabilities_are_those_of_a_chat(served: Served, client: openai.OpenAI) -> None:
    options: Any = {"model": "demo", "temperature": 0, "top_logprobs": 2}
    chat = client.chat.completions.create(messages=SAID, max_tokens=8, logprobs=True, **options)
    assert chat.choices[0].logprobs
    expected = [each.model_dump() for each in chat.choices[0].logprobs.content or ()]
    asked: Any = {"input": PROMPT, "max_output_tokens": 8, **options}
    made = client.responses.create(**asked)
    asked["include"] = ["message.output_text.logprobs"]
    assert made.top_logprobs == 2
    output: Any = made.output[0]
    found = [each.model_dump() for each in output.content[0].logprobs]
    assert found == expected[: len(found)]
    assert text_of(made.output[0].content[0].logprobs) == made.output_text
    with client.responses.stream(**asked) as stream:
        gained = [
            (event.delta, event.logprobs)
            for event in stream
            if event.type == "response.output_text.delta"
        ]
    assert all(text_of(of) == text for text, of in gained)
    assert [each.token for _, of in gained for each in of] == [each["token"] for each in found]
    same = streamed(served, RESPONSES, **asked)["output"][0]["content"][0]
    assert same["logprobs"] == found


def text_of(logprobs: Any) -> str:
    """Return the text of tokens, by their bytes."""
    return b"".join(bytes(each.bytes) for each in logprobs).decode(errors="replace")


def test_log_probabilities_of_thoughts_are_not_those_of_the_text() -> None:
    def tokens(*texts: str | bytes) -> list[TokenLogprob]:
        made = [(str(text), text.encode() if isinstance(text, str) else text) for text in texts]
        return [
            TokenLogprob(token=name, logprob=-1.0, bytes=[*data], top_logprobs=[])
            for name, data in made
        ]

    found = tokens("<think>", "so", "</think>", "Yes", ", ", "it is", "<end>")
    assert tokens_of("Yes, it is", found) == tokens_of("es, it", found) == found[3:6]
    parts = tokens("a", b"\xc3", b"\xa4", "", "b")  # within a character, there is no text yet
    assert tokens_of("\xe4", parts) == parts[1:3]
    assert tokens_of("\ufffd", parts[:2]) == parts[1:2]
    ids = tokens("token_id:1", "token_id:2")
    assert tokens_of("\xe4", ids) == ids


# ---------------------------------------------------------------------- calls and thoughts


def test_a_call_and_what_it_gave(served: Served, claude: anthropic.Anthropic) -> None:
    made = claude.messages.create(**ASKED, **CALL[MESSAGES], **GREEDY)
    (call,) = made.content
    assert call.type == "tool_use"
    assert made.stop_reason == "tool_use"
    jsonschema.validate(call.input, SCHEMA)
    (same,) = streamed(served, MESSAGES, **CALL[MESSAGES], temperature=0)["content"]
    assert (same["name"], json.loads(same["input"])) == ("weather", call.input)
    any_tool: Any = {"type": "any", "disable_parallel_tool_use": True}
    with claude.messages.stream(**ASKED, tools=SENT, tool_choice=any_tool) as stream:
        final = stream.get_final_message()
    (use,) = final.content
    assert use.type == final.stop_reason == "tool_use"
    result: Any = [
        {"type": "tool_result", "tool_use_id": use.id, "content": "none", "is_error": True},
        {"type": "text", "text": "So?"},
    ]
    messages = [*SAID, final.to_param(), {"role": "user", "content": result}]
    after = claude.messages.create(
        model="demo", max_tokens=4, messages=messages, tools=SENT, tool_choice={"type": "none"}
    )
    assert after.content[0].type == "text"


def test_a_call_of_a_response_and_what_it_gave(served: Served, client: openai.OpenAI) -> None:
    options = CALL[RESPONSES]
    made = client.responses.create(model="demo", input=PROMPT, temperature=0, **options)
    (call,) = made.output
    assert call.type == "function_call"
    jsonschema.validate(json.loads(call.arguments), SCHEMA)
    (same,) = streamed(served, RESPONSES, temperature=0, **options)["output"]
    assert (same["name"], same["arguments"]) == ("weather", call.arguments)
    with client.responses.stream(model="demo", input=PROMPT, temperature=1.2, **options) as stream:
        grown = [e.delta for e in stream if e.type == "response.function_call_arguments.delta"]
        (final,) = stream.get_final_response().output
    assert final.type == "function_call"
    assert "".join(grown) == final.arguments
    assert len(grown) > 3, "they come as they are generated"
    items: Any = [
        {"role": "user", "content": PROMPT},
        final,
        {"type": "function_call_output", "call_id": final.call_id, "output": "12 degrees"},
    ]
    after = client.responses.create(
        model="demo", input=items, tools=NAMED, tool_choice="none", max_output_tokens=4
    )
    assert after.output_text


def test_a_call_that_is_cut_is_closed_whole_and_streamed(served: Served) -> None:
    body = {**CALL[MESSAGES], "max_tokens": 30, "temperature": 0}
    whole = served.ask("POST", MESSAGES, {"messages": SAID, **body})[1]
    assert whole["stop_reason"] == "max_tokens"
    given = json.loads(streamed(served, MESSAGES, **body)["content"][0]["input"])
    assert given == whole["content"][0]["input"]


def test_thoughts_are_a_part_of_their_own_and_can_be_sent_back(thinking: Served) -> None:
    form = {"regex": "[a-z]{3}</think>[0-9]{2}", "after": "A"}
    asked = {"structured_outputs": form, "logit_bias": bias_to(thinking, "A"), "temperature": 0}
    thinks = {**asked, "thinking": {"type": "enabled", "budget_tokens": 1024}}
    body = {"messages": SAID, "max_tokens": 99, **thinks}
    for made in (streamed(thinking, MESSAGES, **thinks), thinking.ask("POST", MESSAGES, body)[1]):
        thoughts, text = made["content"]
        assert thoughts["type"] == "thinking"
        assert thoughts["thinking"].startswith("A")
        assert len(text["text"]) == 2
        count = made["usage"]["output_tokens_details"]["thinking_tokens"]
        assert 0 < count < made["usage"]["output_tokens"]
        again = [*SAID, {"role": "assistant", "content": made["content"]}, *SAID]
        assert thinking.ask("POST", MESSAGES, {"messages": again, "max_tokens": 2})[0] == 200
    body = {"input": PROMPT, **asked}
    for made in (streamed(thinking, RESPONSES, **asked), thinking.ask("POST", RESPONSES, body)[1]):
        thoughts, message = made["output"]
        assert thoughts["type"] == "reasoning"
        assert thoughts["content"][0]["text"].startswith("A")
        assert len(message["content"][0]["text"]) == 2
        reasoning = made["usage"]["output_tokens_details"]["reasoning_tokens"]
        assert 0 < reasoning < made["usage"]["output_tokens"]
        items = [*SAID, *made["output"], {"role": "user", "content": "So?"}]
        again_body = {"input": items, "max_output_tokens": 2}
        assert thinking.ask("POST", RESPONSES, again_body)[0] == 200


def test_what_changes_no_answer_is_taken(client: openai.OpenAI) -> None:
    made = client.responses.create(
        model="demo",
        input=[{"role": "developer", "content": "x", "type": "message"}],
        store=True,
        metadata={"a": "b"},
        include=["reasoning.encrypted_content"],
        reasoning={"effort": "low", "summary": "auto"},
        prompt_cache_key="k",
        max_output_tokens=1,
    )
    assert made.to_dict()["store"] is False, "nothing is"
    assert made.metadata == {"a": "b"}


# ---------------------------------------------------------------------- endings and errors


def test_an_aborted_answer_ends_with_an_error(served: Served) -> None:
    for path, gain, name in (
        (MESSAGES, b"text_delta", "msg_a"),
        (RESPONSES, b"output_text.delta", "resp_a"),
    ):
        body = {**ENDLESS[path], "stream": True, "request_id": "a"}
        with open_request(served, body, path) as connection:
            begun = read_until(connection, gain)
            assert served.ask("POST", "/abort", {"request_id": name})[1] == {"aborted": True}
            ended = begun + read_until(connection, b"0\r\n\r\n")
        assert b"message_stop" not in ended and b"[DONE]" not in ended
        (last,) = [line for line in ended.split(b"\n") if line.startswith(b"data: ")][-1:]
        found = json.loads(last.removeprefix(b"data: "))
        if path == MESSAGES:
            assert ended.count(b"event: error\n") == 1
            error = {"type": "invalid_request_error", "message": "the request was aborted"}
            assert found == {"type": "error", "error": error}
        else:
            assert ended.count(b"event: response.failed\n") == 1
            response = found["response"]
            assert response["status"] == "failed"
            assert response["error"]["message"] == "the request was aborted"
            assert response["error"]["code"] == "server_error"
            assert response["output"][0]["status"] == "incomplete"
            assert response["output"][0]["content"][0]["text"], "what was sent is a part of it"
    served.wait_until_idle()


def test_silence_is_filled_with_pings_and_what_fails_before_it_began_is_told_whole() -> None:
    waits = {"stream": True, "deadline": 0.5}
    with (
        Served({"ping_interval": 0.05}, scheduler={"max_num_seqs": 1}) as served,
        ExitStack() as ahead,
    ):
        for _ in range(16):  # on any machine they take longer than both deadlines
            body = {**ENDLESS[MESSAGES], "stream": True}
            first = ahead.enter_context(open_request(served, body, MESSAGES))
        read_until(first, b"event: ping")
        with open_request(served, {**ENDLESS[MESSAGES], **waits}, MESSAGES) as second:
            ended = read_until(second, b"0\r\n\r\n")
        assert b'event: ping\ndata: {"type":"ping"}\n\n' in ended
        assert b'{"type":"timeout_error"' in ended
        with open_request(served, {**ENDLESS[RESPONSES], **waits}, RESPONSES) as second:
            ended = read_until(second, b"0\r\n\r\n")
        names = [line for line in ended.split(b"\n") if line.startswith(b"event: ")]
        found = [name.decode().removeprefix("event: response.").strip() for name in names]
        assert found == ["created", "in_progress", "failed"]


def test_errors_are_those_of_the_clients(
    served: Served, claude: anthropic.Anthropic, client: openai.OpenAI
) -> None:
    with pytest.raises(anthropic.NotFoundError):
        claude.messages.create(**{**ASKED, "model": "other"})
    with pytest.raises(anthropic.BadRequestError, match="at least one message"):
        claude.messages.create(**{**ASKED, "messages": []})
    with pytest.raises(openai.NotFoundError):
        client.responses.create(model="other", input="x")
    with pytest.raises(openai.BadRequestError, match="nothing is stored"):
        client.responses.create(model="demo", input="x", previous_response_id="resp_1")
    headers = {"host": "elsewhere.example"}
    for path in (MESSAGES, f"{MESSAGES}/count_tokens"):
        status, found, _ = served.ask("POST", path, {}, headers)
        assert (status, found["type"]) == (421, "error"), "of all that is in front of it, too"
    document = served.ask("GET", "/openapi.json")[1]
    for path, operations in document["paths"].items():
        for operation in operations.values():
            schema = operation["responses"]["500"]["content"]["application/json"]["schema"]
            name = "AnthropicError" if path.startswith(MESSAGES) else "ErrorAnswer"
            assert schema == {"$ref": f"#/components/schemas/{name}"}
