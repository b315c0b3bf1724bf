"""Tools beside a form, and which calls an answer may have: in all three APIs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from server.served import Served, events
from server.told import make_told, say, told_registry, told_settings

pytestmark = pytest.mark.heavy

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}
NAMES = ("look", "find")
FORM = {"name": "answer", "schema": SCHEMA}


def call(name: str, number: int = 1) -> str:
    arguments = f'{{"a": {number}}}'
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    settings = told_settings(make_told(tmp_path_factory.mktemp("told")))
    with Served(registry=told_registry(), **{**settings, "tool_parser": "hermes"}) as served:
        yield served


def asked(path: str, text: str, choice: str | None, *, form: bool = True, **more: Any) -> Any:
    """Return a request that is answered with a text, as far as its form lets it be."""
    said = [{"role": "user", "content": say(text)}]
    if path == CHAT:
        made: Any = {"messages": said, "max_tokens": 200, "tool_choice": choice}
        tools = [{"type": "function", "function": {"name": n, "parameters": SCHEMA}} for n in NAMES]
        shape: Any = {"response_format": {"type": "json_schema", "json_schema": FORM}}
    elif path == RESPONSES:
        made = {"input": said, "max_output_tokens": 200, "tool_choice": choice}
        tools = [{"type": "function", "name": name, "parameters": SCHEMA} for name in NAMES]
        shape = {"text": {"format": {"type": "json_schema", **FORM}}}
    else:
        kind = {"required": "any"}.get(choice or "", choice)
        made = {"messages": said, "max_tokens": 200, "tool_choice": kind and {"type": kind}}
        tools = [{"name": name, "input_schema": SCHEMA} for name in NAMES]
        shape = {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}
    return {**made, "tools": tools, **(shape if form else {}), **more}


def answered(told: Served, path: str, body: Any) -> tuple[str, list[str]]:
    """Return the text of an answer, and the names of what it calls."""
    status, found, _ = told.ask("POST", path, body)
    assert status == 200, found
    if path == CHAT:
        message = found["choices"][0]["message"]
        calls = [each["function"]["name"] for each in message.get("tool_calls") or ()]
        return message["content"] or "", calls
    parts = found["content" if path == MESSAGES else "output"]
    names = [part["name"] for part in parts if part["type"] in ("tool_use", "function_call")]
    texts = [part for part in parts if part["type"] in ("text", "message")]
    if path == RESPONSES:
        texts = [text for part in texts for text in part["content"]]
    return "".join(part["text"] for part in texts), names


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
def test_an_answer_is_of_the_form_or_calls(told: Served, path: str) -> None:
    form = '{"a": 17}'
    for choice in (None, "auto"):
        assert answered(told, path, asked(path, form, choice)) == (form, [])
        assert answered(told, path, asked(path, call("find"), choice)) == ("", ["find"])
        text, names = answered(told, path, asked(path, "Hello.", choice))
        assert names or set(json.loads(text)) == {"a"}, "nothing else can be said"
    assert answered(told, path, asked(path, form, "none")) == (form, [])
    text, _ = answered(told, path, asked(path, call("find"), "none"))
    assert set(json.loads(text)) == {"a"}
    assert answered(told, path, asked(path, call("find"), "required")) == ("", ["find"])
    assert answered(told, path, asked(path, form, "required"))[1]


def test_a_form_needs_no_known_way_to_write_calls(tmp_path: Any) -> None:
    with Served(registry=told_registry(), **told_settings(make_told(tmp_path))) as served:
        assert answered(served, CHAT, asked(CHAT, call("look"), "auto")) == ("", ["look"])
        choices = {"structured_outputs": {"choice": ["yes", "no"]}}
        body = asked(CHAT, "no", "auto", form=False, **choices)
        assert answered(served, CHAT, body) == ("no", [])


LARGE: list[dict[str, Any]] = [
    {"structured_outputs": {"choice": [str(n) * 50 for n in range(5000)]}},
    {
        "response_format": {
            "type": "json_schema",
            "json_schema": {
                "name": "x",
                "schema": {"properties": {f"a{n}": {"type": "integer"} for n in range(490)}},
            },
        }
    },
]


@pytest.mark.parametrize("tools", [False, True])
@pytest.mark.parametrize(("form", "text"), [(LARGE[0], "4321" * 50), (LARGE[1], '{"a489":1}')])
def test_large_forms_are_followed(told: Served, form: Any, text: str, *, tools: bool) -> None:
    body = {**asked(CHAT, text, None, form=False), **form}
    assert answered(told, CHAT, body if tools else {**body, "tools": None}) == (text, [])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", ["auto", "required"])
def test_at_most_one_call_where_they_may_not_be_parallel(
    told: Served, choice: str, *, stream: bool
) -> None:
    two = call("look") + "\n" + call("find", 2)
    for parallel in (False, None):
        expected = ["look"] if parallel is False else ["look", "find"]
        for form in (False, True):
            more = {"parallel_tool_calls": parallel, "stream": stream}
            body = asked(CHAT, two, choice, form=form, **more)
            status, found, _ = told.ask("POST", CHAT, body)
            assert status == 200, found
            if not stream:
                calls = found["choices"][0]["message"]["tool_calls"]
            else:
                deltas = [each["choices"][0]["delta"] for each in events(found)[:-1]]
                calls = [each for delta in deltas for each in delta.get("tool_calls") or ()]
            names = [name for each in calls if (name := each["function"].get("name"))]
            assert names == expected, (parallel, form)
    body = asked(MESSAGES, two, None, form=False)
    body["tool_choice"] = {"type": "auto", "disable_parallel_tool_use": True}
    assert answered(told, MESSAGES, body) == ("", ["look"])
    body = asked(RESPONSES, two, choice, form=False, parallel_tool_calls=False)
    assert answered(told, RESPONSES, body)[1] == ["look"]


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_tools_that_are_allowed_are_those_that_may_be_called(told: Served, mode: str) -> None:
    function = {"type": "function", "function": {"name": "look"}}
    chosen = {"mode": mode, "tools": [function]}
    choices: Any = {
        CHAT: {"type": "allowed_tools", "allowed_tools": chosen},
        RESPONSES: {
            "type": "allowed_tools",
            "mode": mode,
            "tools": [{"type": "function", "name": "look"}],
        },
    }
    for path, choice in choices.items():
        for form in (False, True):
            body = asked(path, call("look"), choice, form=form)
            assert answered(told, path, body)[1] == ["look"]
            body = asked(path, call("find"), choice, form=form)
            assert "find" not in answered(told, path, body)[1]


@pytest.mark.parametrize("choice", ["auto", "required"])
@pytest.mark.parametrize("stop", ['"a":', "</tool_call>"], ids=["within", "after"])
@pytest.mark.parametrize("path", [CHAT, MESSAGES])
def test_a_call_that_a_stop_string_has_cut_is_not_whole(
    told: Served, path: str, stop: str, choice: str
) -> None:
    name = "stop" if path == CHAT else "stop_sequences"
    body = asked(path, call("look"), choice, form=False, **{name: [stop]})
    assert answered(told, path, body)[1] == ["look"]
    found = told.ask("POST", path, body)[1]
    reason = found["choices"][0]["finish_reason"] if path == CHAT else found["stop_reason"]
    is_cut = stop == '"a":'
    whole, cut = ("tool_calls", "stop") if path == CHAT else ("tool_use", "stop_sequence")
    assert reason == (cut if is_cut else whole)


@pytest.mark.parametrize("choice", [None, "auto", {"name": "look"}], ids=["unset", "auto", "named"])
def test_functions_are_called_as_tools_are(told: Served, choice: Any) -> None:
    older = {"functions": [{"name": n, "parameters": SCHEMA} for n in NAMES]}
    body = {"max_tokens": 200, "function_call": choice, **older}
    body["messages"] = [{"role": "user", "content": say(call("look") + call("find"))}]
    status, found, _ = told.ask("POST", CHAT, body)
    assert status == 200, found
    said, reason = (found["choices"][0][name] for name in ("message", "finish_reason"))
    assert (said["content"], reason, "tool_calls" in said) == (None, "function_call", False)
    assert said["function_call"] == {"name": "look", "arguments": '{"a": 1}'}
    _, text, _ = told.ask("POST", CHAT, {**body, "stream": True})
    choices = [each["choices"][0] for each in events(text)[:-1]]
    assert choices[-1]["finish_reason"] == "function_call"
    grown = [each["delta"]["function_call"] for each in choices if "function_call" in each["delta"]]
    assert {"".join(each.get(name, "") for each in grown) for name in said["function_call"]} == {
        *said["function_call"].values()
    }
    body["messages"] += [said, {"role": "function", "name": "look", "content": "2"}]
    as_tools = json.loads(json.dumps(body["messages"]))
    as_tools[1]["tool_calls"] = [{"id": "call_1", "function": as_tools[1].pop("function_call")}]
    as_tools[2] |= {"role": "tool", "tool_call_id": "call_1"}
    prompts = [told.ask("POST", "/tokenize", {"messages": m}) for m in (body["messages"], as_tools)]
    assert prompts[0][0] == 200
    assert prompts[0][1] == prompts[1][1]
    assert told.ask("POST", CHAT, body)[0] == 200


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
def test_names_of_tools_may_be_long(told: Served, path: str) -> None:
    body = json.loads(
        json.dumps(asked(path, call("look"), None)).replace('"look"', f'"{"l" * 128}"')
    )
    assert told.ask("POST", path, body)[0] == 200
