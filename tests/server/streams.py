"""Grammar of the events of streams, and the answers that they make, put together."""

from __future__ import annotations

import json
from typing import Any

LAST = ("response.completed", "response.incomplete", "response.failed")
_PARTS = {"message": "output_text", "reasoning": "reasoning_text"}


def named_events(text: str) -> list[tuple[str, Any]]:
    """Return the names and the objects of a stream's events; comments are none."""
    found = []
    for block in text.split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.split("\n") if line[:1] not in ("", ":"))
        if lines:
            found.append((lines["event"], json.loads(lines["data"])))
    return found


def response_of(events: list[Any]) -> dict[str, Any]:
    """Check the events of a response, and return what the last one says it is."""
    assert [each["sequence_number"] for each in events] == list(range(len(events)))
    first, second, *others, last = events
    assert (first["type"], second["type"]) == ("response.created", "response.in_progress")
    assert first["response"]["status"] == second["response"]["status"] == "in_progress"
    assert first["response"]["output"] == []
    items: list[Any] = []
    left = iter(others)
    for event in left:
        assert event["type"] == "response.output_item.added"
        assert event["item"]["status"] == "in_progress"
        items.append(_item(event, left, len(items)))
    assert last["type"] in LAST
    response: dict[str, Any] = last["response"]
    assert last["type"] == f"response.{response['status']}"
    assert response["output"] == items
    assert len({item["id"] for item in items}) == len(items)
    assert {**response, **_CHANGES} == {**first["response"], **_CHANGES}
    return response


_CHANGES = dict.fromkeys(("status", "output", "usage", "error", "incomplete_details"))


def _item(added: Any, events: Any, index: int) -> Any:
    """Read the events of one item, and return the item when it is done."""
    item, text = added["item"], ""
    kind = _PARTS.get(item["type"])
    name = f"response.{kind}" if kind else "response.function_call_arguments"
    assert added["output_index"] == index
    place = {"item_id": item["id"], "output_index": index, **({"content_index": 0} if kind else {})}

    def next_event(wanted: str) -> Any:
        event = next(events)
        assert event["type"] == wanted
        assert place.items() <= event.items()
        return event

    if kind:
        assert item["content"] == []
        part = next_event("response.content_part.added")["part"]
        assert (part["type"], part["text"]) == (kind, "")
    for event in events:
        if event["type"] != f"{name}.delta":
            break
        assert event["delta"], "an empty delta"
        text += event["delta"]
    assert event["type"] == f"{name}.done"
    assert event["text" if kind else "arguments"] == text
    if kind:
        part = next_event("response.content_part.done")["part"]
        assert (part["type"], part["text"]) == (kind, text)
    done = next(events)
    assert (done["type"], done["output_index"]) == ("response.output_item.done", index)
    whole = done["item"]
    assert whole["status"] in ("completed", "incomplete")
    assert whole["id"] == item["id"]
    assert whole["content"] == [part] if kind else whole["arguments"] == text
    return whole


def message_of(events: list[Any]) -> dict[str, Any]:
    """Check the events of a message, and return it; inputs of tools are left as their JSON."""
    events = [each for each in events if each["type"] != "ping"]
    first, *others, delta, last = events
    assert first["type"] == "message_start"
    message: dict[str, Any] = first["message"]
    assert message["content"] == []
    assert message["stop_reason"] is None
    left = iter(others)
    for start in left:
        assert start["type"] == "content_block_start"
        assert start["index"] == len(message["content"])
        message["content"].append(_block(start, left))
    assert delta["type"] == "message_delta"
    assert delta["delta"]["stop_reason"] is not None
    assert last == {"type": "message_stop"}
    return {**message, **delta["delta"], "usage": delta["usage"]}


def _block(start: Any, events: Any) -> Any:
    """Read the events of one block, and return what they make of it."""
    block = start["content_block"]
    kind, name, field = {
        "text": ("text_delta", "text", "text"),
        "thinking": ("thinking_delta", "thinking", "thinking"),
        "tool_use": ("input_json_delta", "partial_json", "input"),
    }[block["type"]]
    assert not block[field]
    text = ""
    for event in events:
        assert event["index"] == start["index"]
        if event["type"] == "content_block_stop":
            break
        assert event["type"] == "content_block_delta"
        assert event["delta"]["type"] == kind
        assert event["delta"][name], "an empty delta"
        text += event["delta"][name]
    else:
        raise AssertionError("it does not stop")
    return {**block, field: text}


_WHOLE = ("finish_reason", "stop_reason", "index", "role", "id", "type", "name")
"""Keys whose values are never cut."""


def merged(into: dict[str, Any], gain: dict[str, Any]) -> None:
    """Add what a choice, a message or a call has gained: texts and lists grow."""
    for key, value in gain.items():
        if value is None:
            into.setdefault(key, None)
        elif key == "tool_calls":
            calls = into.get(key) or []
            into[key] = calls
            for each in value:
                if each["index"] == len(calls):
                    calls.append({})
                merged(calls[each["index"]], each)
        elif isinstance(value, dict):
            into[key] = into.get(key) or {}
            merged(into[key], value)
        elif key in _WHOLE or into.get(key) is None:
            into[key] = value
        else:
            into[key] = into[key] + value
