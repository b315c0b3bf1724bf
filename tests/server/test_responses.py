"""The client of OpenAI's Responses API gets what chat completions give, whole and as events."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import msgspec
import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from paged_plugins.server.openai.protocol import TokenLogprob
from paged_plugins.server.responses.events import tokens_of
from paged_plugins.server.responses.protocol import AnyEvent
from server.served import Served, wait_until
from server.streams import named_events, response_of
from server.test_formats import SCHEMA, bias_to
from server.test_holding_up import LONG, open_request, read_until
from server.test_messages import deep

PATH = "/v1/responses"
PROMPT = "What is the weather in Paris?"
TOOLS: Any = [
    {"type": "function", "name": "weather", "description": "of a city", "parameters": SCHEMA},
    {"type": "function", "name": "now", "parameters": {"additionalProperties": False}},
]
LOGPROBS: Any = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
CALL: Any = {"tools": TOOLS, "tool_choice": {"type": "function", "name": "weather"}}
ENDLESS = {"input": "x", "stream": True, "ignore_eos": True, "max_output_tokens": 900}
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with Served() as served:
        yield served


@pytest.fixture(scope="module")
def client(served: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.address}/v1", api_key="none", max_retries=0) as client:
        yield client


def streamed(served: Served, **body: Any) -> dict[str, Any]:
    """The response at the end of a stream, whose events are as the document and the client say."""
    status, text, _ = served.ask("POST", PATH, {"input": PROMPT, "stream": True, **body})
    assert status == 200, text
    events = named_events(text)
    for name, event in events:
        assert event["type"] == name
        msgspec.convert(event, AnyEvent)
        EVENT.validate_python(event)
    return response_of([event for _, event in events])


# ---------------------------------------------------------------------- text


def test_a_response_is_what_a_chat_gives(served: Served, client: openai.OpenAI) -> None:
    options: Any = {"model": "demo", "temperature": 0}
    messages: Any = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    chat = client.chat.completions.create(messages=messages, max_tokens=8, **options)
    asked: Any = {"input": "Hi", "instructions": "Be brief.", "max_output_tokens": 8, **options}
    made = client.responses.create(**asked)
    Response.model_validate(made.model_dump(), strict=False)
    assert made.output_text == chat.choices[0].message.content
    assert made.status == "incomplete"
    assert made.incomplete_details
    assert made.incomplete_details.reason == "max_output_tokens"
    assert made.instructions == "Be brief."
    assert chat.usage
    assert made.usage
    assert made.usage.input_tokens == chat.usage.prompt_tokens
    assert made.usage.output_tokens == 8
    same = streamed(served, **asked)
    assert same["output"][0]["content"][0]["text"] == made.output_text
    assert same["status"] == "incomplete"
    with client.responses.stream(**asked) as stream:
        seen = [event.type for event in stream]
    assert seen[-1] == "response.incomplete"


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


def test_cached_tokens_are_told(client: openai.OpenAI) -> None:
    asked: Any = {"model": "demo", "input": "a block " * 60, "max_output_tokens": 1}
    client.responses.create(**asked)
    usage = client.responses.create(**asked).usage
    assert usage
    assert 0 < usage.input_tokens_details.cached_tokens < usage.input_tokens


def test_tokens_of_an_input_are_counted(client: openai.OpenAI) -> None:
    for asked in ({}, {"instructions": "Be brief."}, {"tools": TOOLS}):
        options: Any = {"model": "demo", "input": PROMPT, **asked}
        usage = client.responses.create(
            **options, max_output_tokens=1, tool_choice="none" if "tools" in asked else "auto"
        ).usage
        assert usage
        assert client.responses.input_tokens.count(**options).input_tokens == usage.input_tokens


def test_log_probabilities_are_those_of_a_chat(served: Served, client: openai.OpenAI) -> None:
    options: Any = {"model": "demo", "temperature": 0, "top_logprobs": 2}
    messages: Any = [{"role": "user", "content": PROMPT}]
    chat = client.chat.completions.create(
        messages=messages, max_tokens=8, logprobs=True, **options
    ).choices[0]
    assert chat.logprobs
    expected = [each.model_dump() for each in chat.logprobs.content or ()]
    asked: Any = {"input": PROMPT, "max_output_tokens": 8, **options, **LOGPROBS}
    made = client.responses.create(**asked)
    assert made.top_logprobs == 2
    output: Any = made.output[0]
    found = [each.model_dump() for each in output.content[0].logprobs]
    assert found == expected[: len(found)]
    assert "".join(each["token"] for each in found) == made.output_text
    with client.responses.stream(**asked) as stream:
        gained = [
            (event.delta, event.logprobs)
            for event in stream
            if event.type == "response.output_text.delta"
        ]
    assert all("".join(each.token for each in of) == text for text, of in gained)
    assert [each.token for _, of in gained for each in of] == [each["token"] for each in found]
    same = streamed(served, **asked)["output"][0]["content"][0]
    assert same["logprobs"] == found


def test_log_probabilities_of_thoughts_are_not_those_of_the_text() -> None:
    tokens = [
        TokenLogprob(token=text, logprob=-1.0, bytes=[], top_logprobs=[])
        for text in ("<think>", "so", "</think>", "Yes", ", ", "it is", "<end>")
    ]
    assert tokens_of("Yes, it is", tokens) == tokens[3:6]
    assert tokens_of("es, it", tokens) == tokens[3:6]
    parts = [
        TokenLogprob(token="\ufffd", logprob=-1.0, bytes=[n], top_logprobs=[]) for n in (195, 164)
    ]
    assert tokens_of("\xe4", parts) == parts


# ---------------------------------------------------------------------- calls and thoughts


def test_a_call_and_what_it_gave(served: Served, client: openai.OpenAI) -> None:
    made = client.responses.create(model="demo", input=PROMPT, temperature=0, **CALL)
    (call,) = made.output
    assert call.type == "function_call"
    jsonschema.validate(json.loads(call.arguments), SCHEMA)
    (same,) = streamed(served, temperature=0, **CALL)["output"]
    assert (same["name"], same["arguments"]) == ("weather", call.arguments)
    with client.responses.stream(model="demo", input=PROMPT, temperature=1.2, **CALL) as stream:
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
        model="demo", input=items, tools=TOOLS, tool_choice="none", max_output_tokens=4
    )
    assert after.output_text


@pytest.mark.parametrize("stream", [False, True])
def test_thoughts_are_an_item(*, stream: bool) -> None:
    with Served(reasoning_parser="deepseek_r1") as served:
        form = {"regex": "[a-z]{3}</think>[0-9]{2}", "after": "A"}
        asked = {"structured_outputs": form, "logit_bias": bias_to(served, "A"), "temperature": 0}
        if stream:
            made = streamed(served, **asked)
        else:
            made = served.ask("POST", PATH, {"input": PROMPT, **asked})[1]
        thoughts, message = made["output"]
        assert thoughts["type"] == "reasoning"
        assert thoughts["content"][0]["text"].startswith("A")
        assert len(message["content"][0]["text"]) == 2
        usage = made["usage"]
        reasoning = usage["output_tokens_details"]["reasoning_tokens"]
        assert 0 < reasoning < usage["output_tokens"]
        items = [{"role": "user", "content": PROMPT}, *made["output"]]
        again = {"input": [*items, {"role": "user", "content": "So?"}], "max_output_tokens": 2}
        assert served.ask("POST", PATH, again)[0] == 200


# ---------------------------------------------------------------------- refusals and endings


@pytest.mark.parametrize(
    ("field", "options", "said"),
    [
        ("previous_response_id", {"previous_response_id": "resp_1"}, "nothing is stored"),
        ("conversation", {"conversation": "conv_1"}, "nothing is stored"),
        ("background", {"background": True}, "background"),
        ("truncation", {"truncation": "auto"}, "truncation"),
        ("n", {"n": 2}, "no field"),
        ("max_tokens", {"max_tokens": 2}, "no field"),
        ("input", {"input": []}, "input is empty"),
        ("input[0].type", {"input": [{"type": "item_reference", "id": "x"}]}, "the item itself"),
        ("input.0.role", {"input": [{"content": "x"}]}, "is missing"),
        ("input.0.call_id", {"input": [{"type": "function_call"}]}, "is missing"),
        (
            "input[0].content[0].type",
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "only text is served",
        ),
        (
            "input",
            {
                "input": [
                    {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{"},
                ]
            },
            "no JSON",
        ),
        ("max_output_tokens", {"max_output_tokens": 0}, "at least 1"),
        ("tools.0.type", {"tools": [{"type": "web_search"}]}, "must be function"),
        ("tools.0.x", {**CALL, "tools": [{**TOOLS[0], "x": 1}]}, "no field here"),
        ("tool_choice", {**CALL, "tool_choice": {"type": "mcp"}}, "'type': 'function', 'name'"),
        ("text.format", {"text": {"format": {"type": "json_schema", "name": "a"}}}, "no schema"),
        ("text.format.type", {"text": {"format": {"type": "yaml"}}}, "must be text"),
        (
            "text.format",
            {"text": {"format": {"type": "json_schema", "schema": deep(70)}}},
            "nested deeper",
        ),
        ("tools", {"tools": [{**TOOLS[0], "parameters": deep(70)}]}, "nested deeper"),
        ("include[0]", {"include": ["file_search_call.results"]}, "include"),
        ("top_logprobs", {"top_logprobs": 2}, "add that to include"),
        ("top_logprobs", {**LOGPROBS, "top_logprobs": 21}, "from 0 to 20"),
    ],
)
def test_what_is_not_served_is_refused_by_name(
    served: Served, field: str, options: dict[str, Any], said: str
) -> None:
    status, error = served.error(PATH, {"input": "x", **options})
    assert (status, error["param"]) == (400, field)
    assert said in error["message"]


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


def test_an_aborted_response_fails(served: Served) -> None:
    body = {**ENDLESS, "request_id": "this"}
    with open_request(served, body, PATH) as connection:
        begun = read_until(connection, b"output_text.delta")
        assert served.ask("POST", "/abort", {"request_id": "resp_this"})[1] == {"aborted": True}
        ended = begun + read_until(connection, b"0\r\n\r\n")
    assert ended.count(b"event: response.failed\n") == 1
    assert b"[DONE]" not in ended
    (last,) = [line for line in ended.split(b"\n") if line.startswith(b"data: ")][-1:]
    response = json.loads(last.removeprefix(b"data: "))["response"]
    assert response["status"] == "failed"
    assert response["error"] == {"code": "server_error", "message": "the request was aborted"}
    assert response["output"][0]["status"] == "incomplete"
    assert response["output"][0]["content"][0]["text"], "what was sent is a part of it"
    served.wait_until_idle()


def test_a_response_that_fails_before_it_began_is_told_whole() -> None:
    with Served({"ping_interval": 0.05}, scheduler={"max_num_seqs": 1}) as served:
        with open_request(served, LONG) as first:
            read_until(first, b"data: ")
            with open_request(served, {**ENDLESS, "deadline": 0.5}, PATH) as second:
                ended = read_until(second, b"0\r\n\r\n")
        names = [line for line in ended.split(b"\n") if line.startswith(b"event: ")]
        found = [name.decode().removeprefix("event: response.").strip() for name in names]
        assert found == ["created", "in_progress", "failed"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_leaves_nothing(served: Served, *, stream: bool) -> None:
    with open_request(served, {**ENDLESS, "stream": stream}, PATH) as connection:
        wait_until(lambda: served.health().num_unfinished == 1, "it was not taken")
        if stream:
            read_until(connection, b"data: ")
    served.wait_until_idle()


def test_errors_are_those_of_the_client(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        client.responses.create(model="other", input="x")
    with pytest.raises(openai.BadRequestError, match="nothing is stored"):
        client.responses.create(model="demo", input="x", previous_response_id="resp_1")
