"""Answers of a form, calls of tools and thoughts, as OpenAI's client gets them."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
import openai
import pytest

from paged_core.text.front_end import FrontEnd, Prompt
from server.served import SCHEMA, Served, bias_to

pytestmark = pytest.mark.heavy

MESSAGES: Any = [{"role": "user", "content": "What is the weather in Paris?"}]
TOOLS: Any = [
    {
        "type": "function",
        "function": {"name": "weather", "description": "of a city", "parameters": SCHEMA},
    },
    {
        "type": "function",
        "function": {"name": "now", "parameters": {"additionalProperties": False}},
    },
]
FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "weather", "schema": SCHEMA}}
WEATHER: Any = {"type": "function", "function": {"name": "weather"}}


def ask(client: openai.OpenAI, **options: Any) -> Any:
    values = {"max_tokens": 200, "seed": 3, **options}
    return client.chat.completions.create(model="demo", messages=MESSAGES, **values)


# ---------------------------------------------------------------------- forms

MANY_WAYS = "\n".join(
    [
        'start: "a" s',
        f's: {" | ".join(f"r{place}" for place in range(150))} | "b"',
        *(f"r{place}: s s s" for place in range(150)),
    ]
)
"""So many that after some tokens they are too many to follow."""


def test_a_form_that_is_too_much_after_some_tokens_is_the_requests_fault(
    served: Served, client: openai.OpenAI
) -> None:
    options: Any = {"extra_body": {"structured_outputs": {"grammar": MANY_WAYS}}}
    with pytest.raises(openai.BadRequestError, match="max is 2000") as refused:
        ask(client, **options)
    assert refused.value.code == "ruled_out"
    served.wait_until_idle()


@pytest.mark.parametrize("temperature", [0, 1.3])
def test_a_json_schema_is_forced(client: openai.OpenAI, temperature: float) -> None:
    made = ask(client, response_format=FORMAT, temperature=temperature)
    assert made.choices[0].finish_reason == "stop"
    jsonschema.validate(json.loads(made.choices[0].message.content), SCHEMA)


def test_any_object_is_forced(client: openai.OpenAI) -> None:
    bias = {"2": 5.0}  # the end, wherever it is allowed
    made = ask(client, response_format={"type": "json_object"}, logit_bias=bias, temperature=0)
    content = made.choices[0].message.content
    assert content.startswith("{")
    if made.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(content), dict)


def test_forms_of_vllm_are_forced(client: openai.OpenAI) -> None:
    for form, texts in (
        ({"choice": ["red", "green"]}, ("red", "green")),
        ({"regex": "(ab){2}"}, ("abab",)),
        ({"grammar": 'start: "x" "y"'}, ("xy",)),
    ):
        made = ask(client, extra_body={"structured_outputs": form})
        assert made.choices[0].message.content in texts
        done = client.completions.create(
            model="demo", prompt="a", extra_body={"structured_outputs": form}
        )
        assert done.choices[0].text in texts
        assert done.choices[0].finish_reason == "stop"


# ---------------------------------------------------------------------- calls


@pytest.mark.parametrize("choice", ["required", WEATHER], ids=["required", "named"])
def test_a_call_is_forced(client: openai.OpenAI, choice: Any) -> None:
    options = {"tools": TOOLS, "tool_choice": choice, "temperature": 0}
    made = ask(client, **options, parallel_tool_calls=False)
    (call,) = made.choices[0].message.tool_calls
    assert made.choices[0].finish_reason == "tool_calls"
    assert made.choices[0].message.content is None
    assert call.type == "function"
    assert call.function.name in (("weather", "now") if choice == "required" else ("weather",))
    schema = SCHEMA if call.function.name == "weather" else {"type": "object"}
    jsonschema.validate(json.loads(call.function.arguments), schema)


@pytest.mark.parametrize("max_tokens", [3, 12])
def test_the_beginning_of_a_forced_call_is_no_text(client: openai.OpenAI, max_tokens: int) -> None:
    options = {"tools": TOOLS, "tool_choice": "required", "max_tokens": max_tokens}
    made = ask(client, **options).choices[0]
    assert (made.message.content or "", made.finish_reason) == ("", "length")


def test_several_calls_may_be_forced(client: openai.OpenAI) -> None:
    made = ask(client, tools=TOOLS, tool_choice="required", temperature=1.0, n=4, max_tokens=400)
    for choice in made.choices:
        if choice.finish_reason == "tool_calls":
            assert choice.message.tool_calls
            for call in choice.message.tool_calls:
                json.loads(call.function.arguments)


def test_no_tool_is_called_where_none_may_be(client: openai.OpenAI) -> None:
    made = ask(client, tools=TOOLS, tool_choice="none", temperature=0, max_tokens=8)
    assert made.choices[0].message.tool_calls is None
    assert made.choices[0].message.content


def test_the_format_that_is_named_is_forced() -> None:
    """The conformance of parsers says whether each format can be."""
    with Served(tool_parser="pythonic") as served:
        url = f"{served.address}/v1"
        with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
            options = {"tools": TOOLS, "temperature": 0.9}
            made = ask(client, **options, tool_choice=WEATHER)
            (call,) = made.choices[0].message.tool_calls
            assert made.choices[0].message.content is None
            jsonschema.validate(json.loads(call.function.arguments), SCHEMA)
            free = ask(client, **options, tool_choice="auto", max_tokens=12)
            assert free.choices[0].message.content


# ---------------------------------------------------------------------- thoughts


@pytest.mark.parametrize("stream", [False, True])
def test_thoughts_are_apart_and_a_form_begins_after_them(thinking: Served, *, stream: bool) -> None:
    # the thoughts are forced, too, from the letter A on
    form = {"regex": "[a-z]{3}</think>[0-9]{2}", "after": "A"}
    forced = {"structured_outputs": form, "logit_bias": bias_to(thinking, "A")}

    def texts(*names: str, **extra: Any) -> list[str]:
        made = ask(client, extra_body={**forced, **extra}, temperature=0, stream=stream)
        choices = [choice for each in (made if stream else [made]) for choice in each.choices]
        parts = [each.delta if stream else each.message for each in choices]
        return ["".join(getattr(part, name, None) or "" for part in parts) for name in names]

    url = f"{thinking.address}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        content, thoughts, again = texts("content", "reasoning_content", "reasoning")
        assert re.fullmatch("[0-9]{2}", content)
        assert re.fullmatch("A[a-z]{3}", thoughts)
        assert again == thoughts, "it has two names"
        names = ("content", "reasoning", "reasoning_content")
        assert texts(*names, include_reasoning=False) == [content, "", ""]
        kept = ask(client, extra_body={"structured_outputs": {"regex": "[0-9]"}}, max_tokens=8)
        assert kept.choices[0].finish_reason == "length", "it has not ended its thoughts"
        assert not kept.choices[0].message.content
        assert kept.choices[0].message.reasoning_content


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"reasoning_effort": "low"}, {"reasoning_effort": "low"}),
        ({"reasoning_effort": "none"}, {"enable_thinking": False}),
        ({"enable_thinking": True}, {"enable_thinking": True}),
        ({"thinking": {"type": "disabled"}}, {"enable_thinking": False, "thinking": False}),
        ({"documents": [{"title": "a"}]}, {"documents": [{"title": "a"}]}),
        (
            {"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True, "x": 1}},
            {"enable_thinking": True, "x": 1},
        ),
    ],
    ids=str,
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/tokenize"])
def test_documents_and_how_much_to_think_are_told_to_the_template(
    served: Served,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    options: dict[str, Any],
    told: dict[str, Any],
) -> None:
    given: list[Any] = []
    render = FrontEnd.chat_prompts

    def noted(front_end: FrontEnd, messages: Any, **rest: Any) -> list[Prompt]:
        given.append(rest["chat_template_kwargs"])
        return render(front_end, messages, **rest)

    monkeypatch.setattr(FrontEnd, "chat_prompts", noted)
    assert served.ask("POST", path, {"messages": MESSAGES, **options})[0] == 200
    assert given == [told]


def test_the_bytes_of_tokens_make_the_text(client: openai.OpenAI) -> None:
    """Where a character has several tokens, the text of none of them says what it is."""
    answer = client.chat.completions.create(
        model="demo",
        messages=MESSAGES,
        logprobs=True,
        top_logprobs=1,
        max_tokens=40,
        extra_body={"structured_outputs": {"choice": ["é€😀"]}},
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None and logprobs.content is not None
    found = b"".join(bytes(each.bytes or ()) for each in logprobs.content)
    assert found.startswith("é€😀".encode())


LOOSE = {
    "type": "object",
    "properties": {"a": {"type": "string", "format": "password", "maxLength": 3}},
    "required": ["a"],
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("strict", [False, True], ids=["loose", "strict"])
@pytest.mark.parametrize("path", ["chat/completions", "completions", "responses", "tools"])
def test_parts_of_a_schema_that_are_not_enforced_are_named(
    served: Served, path: str, strict: bool, stream: bool
) -> None:
    named = {"name": "f", "schema": LOOSE, "strict": strict}
    body: dict[str, Any] = {"response_format": {"type": "json_schema", "json_schema": named}}
    if path == "completions":
        body["prompt"] = "x"
    elif path == "responses":
        body = {"input": "x", "text": {"format": {"type": "json_schema", **named}}}
    elif path == "tools":
        function = {"name": "f", "parameters": LOOSE, "strict": strict}
        body = {"tools": [{"type": "function", "function": function}], "tool_choice": "required"}
    if path in ("chat/completions", "tools"):
        path, body["messages"] = "chat/completions", MESSAGES
    most = {"max_output_tokens": 60} if path == "responses" else {"max_tokens": 60}
    status, _, headers = served.ask("POST", f"/v1/{path}", {**body, **most, "stream": stream})
    assert status == 200
    assert "is not held to format 'password'" in headers["x-paged-core-warning"]


def test_a_strict_answer_has_no_other_properties_and_ends(served: Served) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "f", "schema": LOOSE, "strict": True}}
    body = {"messages": MESSAGES, "response_format": form, "n": 8, "seed": 1, "max_tokens": 60}
    _, found, _ = served.ask("POST", "/v1/chat/completions", {**body, "temperature": 1.5})
    texts = [each["message"]["content"] for each in found["choices"]]
    assert [json.loads(text).keys() for text in texts] == [{"a"}] * 8
