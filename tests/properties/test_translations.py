"""Translations of other APIs onto chat completions lose no text, and tell it in order."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from paged_core.sampling_params import SamplingParams
from paged_plugins.server.anthropic import protocol as anthropic
from paged_plugins.server.anthropic import reading as from_anthropic
from paged_plugins.server.anthropic.events import GrowingMessage
from paged_plugins.server.openai.chat import ChatDelta
from paged_plugins.server.openai.protocol import CalledFunction, ChatRequest, MadeToolCall
from paged_plugins.server.responses import protocol as responses
from paged_plugins.server.responses import reading as from_responses
from paged_plugins.server.responses.events import GrowingResponse
from server.streams import message_of, named_events, response_of

USAGE = {"input_tokens": 1, "output_tokens": 1}
RESPONSES_USAGE = msgspec.convert(
    {
        **USAGE,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 2,
    },
    responses.ResponsesUsage,
)
MESSAGES_USAGE = msgspec.convert(
    {**USAGE, "cache_read_input_tokens": 0, "cache_creation_input_tokens": 0},
    anthropic.MessagesUsage,
)
words = st.text(st.characters(codec="utf-8"), min_size=1, max_size=6)


@dataclass
class Answer:
    """Deltas that a parser made of an answer, and what they say in all."""

    deltas: list[ChatDelta] = field(default_factory=list)
    thoughts: str = ""
    text: str = ""
    calls: list[list[str]] = field(default_factory=list)
    """Names and arguments."""
    left: str = ""
    """Rest of the arguments of the last call."""


@st.composite
def answers(draw: st.DrawFn) -> Answer:
    """Thoughts first, then text and calls as they come; each delta may have some of each."""
    made = Answer()
    thinks = draw(st.booleans())
    for _ in range(draw(st.integers(1, 6))):
        delta = ChatDelta(0, "", [1])
        if thinks and draw(st.booleans()):
            delta.reasoning_content = draw(words)
            made.thoughts += delta.reasoning_content
        thinks = thinks and draw(st.booleans())
        if not thinks:
            delta.tool_calls = _calls(draw, made) or None
            # a call that goes on has ended before text comes
            if not made.left:
                delta.content = draw(st.one_of(st.none(), st.just(""), words))
            made.text += delta.content or ""
        made.deltas.append(delta)
    if made.left:  # a call that is cut is closed, so that its arguments are JSON
        rest, place = made.left, len(made.calls) - 1
        made.calls[-1][1] += rest
        calls = [MadeToolCall(function=CalledFunction(arguments=rest), index=place)]
        made.deltas.append(ChatDelta(0, "", [1], tool_calls=calls))
    made.deltas[-1].finish_reason = draw(st.sampled_from(["stop", "length", "tool_calls"]))
    return made


def _calls(draw: st.DrawFn, made: Answer) -> list[MadeToolCall]:
    """More arguments of the last call, and new calls; after text, only new ones."""
    found = []
    if made.left and not made.deltas[-1].content and (text := _more(draw, made)):
        made.calls[-1][1] += text
        place = len(made.calls) - 1
        found.append(MadeToolCall(function=CalledFunction(arguments=text), index=place))
    for _ in range(0 if made.left else draw(st.integers(0, 2))):
        made.left = json.dumps({"a": draw(words)}, ensure_ascii=False)
        name, text = draw(words), _more(draw, made)
        place = len(made.calls)
        made.calls.append([name, text])
        function = CalledFunction(name=name, arguments=text)
        found.append(MadeToolCall(function=function, index=place, id=f"call_{place}"))
        if made.left:
            break
    return found


def _more(draw: st.DrawFn, made: Answer) -> str:
    """Take more of the arguments of the last call."""
    count = draw(st.integers(0, len(made.left)))
    text, made.left = made.left[:count], made.left[count:]
    return text


@given(answers())
def test_a_response_tells_all_that_the_answer_says(answer: Answer) -> None:
    body = responses.ResponsesRequest(input="x")
    made = GrowingResponse("resp_1", "demo", body, SamplingParams(), {})
    sent = [*made.begin()]
    for delta in answer.deltas:
        sent += made.take(delta)
    sent += made.end(answer.deltas[-1].finish_reason, RESPONSES_USAGE)
    events = checked(sent, responses.AnyEvent)
    response = response_of(events)
    assert told(response["output"], "reasoning") == answer.thoughts
    assert told(response["output"], "message") == answer.text
    calls = [each for each in response["output"] if each["type"] == "function_call"]
    assert [[each["name"], each["arguments"]] for each in calls] == answer.calls
    assert [each["call_id"] for each in calls] == [f"call_{i}" for i in range(len(calls))]
    assert response == json.loads(msgspec.json.encode(made.response))
    cut = answer.deltas[-1].finish_reason == "length"
    assert response["status"] == ("incomplete" if cut else "completed")


def told(items: list[Any], kind: str) -> str:
    parts = [part for each in items if each["type"] == kind for part in each["content"]]
    return "".join(part["text"] for part in parts)


@given(answers())
def test_a_message_tells_all_that_the_answer_says(answer: Answer) -> None:
    made = GrowingMessage("msg_1", "demo")
    sent = [made.begin(MESSAGES_USAGE)]
    for delta in answer.deltas:
        sent += made.take(delta)
    sent += made.end(answer.deltas[-1], MESSAGES_USAGE)
    message = message_of(checked(sent, anthropic.AnyEvent))
    blocks = message["content"]
    assert "".join(b["thinking"] for b in blocks if b["type"] == "thinking") == answer.thoughts
    assert "".join(b["text"] for b in blocks if b["type"] == "text") == answer.text
    calls = [each for each in blocks if each["type"] == "tool_use"]
    assert [[each["name"], each["input"]] for each in calls] == answer.calls
    for each in calls:
        each["input"] = json.loads(each["input"])
    assert message == json.loads(msgspec.json.encode(made.message))


def checked(sent: list[bytes], kind: Any) -> list[Any]:
    """Return the objects of events, which are as the document says."""
    found = named_events(b"".join(sent).decode())
    for name, event in found:
        assert event["type"] == name
        msgspec.convert(event, kind)
    return [event for _, event in found]


# ---------------------------------------------------------------------- conversations


@given(st.lists(st.tuples(st.sampled_from("tuacl"), words), min_size=1, max_size=8))
def test_conversations_lose_nothing(said: list[tuple[str, str]]) -> None:
    """Thoughts, what users and the assistant say, and calls with what they gave, or give later.

    What the assistant says after a call whose result comes later is in the message of the call.
    """
    items, messages = [], []
    later: list[tuple[Any, Any]] = []
    for place, (who, text) in enumerate(said):
        call, name = f"call_{place}", f"f{place}"
        item: Any = {"role": "user", "content": [{"type": "input_text", "text": text}]}
        block: Any = {"type": "text", "text": text}
        if who == "a":
            item = {"role": "assistant", "content": [{"type": "output_text", "text": text}]}
        elif who == "t":
            part = {"type": "reasoning_text", "text": text}
            item = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [part]}
            block = {"type": "thinking", "thinking": text, "signature": ""}
        elif who in "cl":
            arguments = json.dumps({"a": text})
            item = {"type": "function_call", "call_id": call, "name": name, "arguments": arguments}
            block = {"type": "tool_use", "id": call, "name": name, "input": {"a": text}}
            items.append(item)
            messages.append({"role": "assistant", "content": [block]})
            item = {"type": "function_call_output", "call_id": call, "output": text}
            block = {"type": "tool_result", "tool_use_id": call, "content": text}
        if who == "l":
            later.append((item, {"role": "user", "content": [block]}))
            continue
        items.append(item)
        role = "assistant" if who in "ta" else "user"
        messages.append({"role": role, "content": [block]})
    items += [item for item, _ in later]
    messages += [message for _, message in later]
    heard_as = _joined if any(who == "l" for who, _ in said) else list
    said = [("c" if who == "l" else who, text) for who, text in said]
    asked = {"model": "demo", "input": items}
    first = from_responses.Reading(sent(asked, responses.ResponsesRequest)).chat()
    asked = {"model": "demo", "messages": messages, "max_tokens": 1}
    body = sent(asked, anthropic.MessagesRequest)
    second = from_anthropic.Reading(body, strips_billing_line=True).chat()
    assert heard_as(heard(first)) == heard_as(heard(second)) == heard_as(said)
    for message in first.messages:
        assert message.role != "tool" or message.name == f"f{str(message.tool_call_id)[5:]}"


def _joined(said: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Join what the assistant says between two users: its thoughts, its text, its calls."""
    found: list[tuple[str, str]] = []
    for is_user, turn in groupby(said, key=lambda each: each[0] == "u"):
        parts = list(turn)
        if is_user:
            found += parts
            continue
        found += [(who, "".join(text for kind, text in parts if kind == who)) for who in "ta"]
        found += [each for each in parts if each[0] == "c"]
    return found


def sent(body: dict[str, Any], kind: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(body), type=kind)


def heard(request: ChatRequest) -> list[tuple[str, str]]:
    """Return what a conversation says, in its order."""
    found = []
    for message in request.messages:
        if message.reasoning_content is not None:
            found.append(("t", message.reasoning_content))
        if message.content is not None and message.role != "tool":
            found.append((message.role[0], message.content))
        for call in message.tool_calls or ():
            text = json.loads(call.function.arguments)["a"]
            (result,) = (each for each in request.messages if each.tool_call_id == call.id)
            assert result.content == text
            found.append(("c", text))
    return found
