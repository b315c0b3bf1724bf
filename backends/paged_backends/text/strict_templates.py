"""Conversations in the shapes that strict chat templates take.

Some templates refuse what others write as it is: a system message that is late, or at all; two
messages of the same role in a row; ids of calls in another form; two calls in a message. Each
change here makes a conversation one that such a template takes, with all that is said in it.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from typing import Any

from paged_backends.text.template_bounds import TemplateTooCostly

Messages = list[dict[str, Any]]

_SYSTEM = ("system", "developer")
_SHORT_ID = re.compile(r"[a-zA-Z0-9]{9}")


def accepted(messages: Messages, rendered: Callable[[Messages], str]) -> str:
    """Return the text of a conversation in the first shape that a template takes.

    One in which a system message is left out comes after all others.

    Args:
        rendered: the template: returns the text, or raises.

    Raises:
        Exception: as the template at first, which takes no shape; it does too much.
    """
    found: str | None = None
    refusal: Exception | None = None
    for each in (messages, *_changed(messages)):
        try:
            text = rendered(each)
        except TemplateTooCostly:
            raise
        except Exception as error:  # noqa: BLE001 - a template is a program
            refusal = refusal or error
            continue
        if all(part.strip() in text for part in _system_texts(messages)):
            return text
        found = found or text
    if found is None and refusal is not None:
        raise refusal
    return found or ""


def _system_texts(messages: Messages) -> Iterator[str]:
    for each in messages:
        if each["role"] in _SYSTEM:
            content = each.get("content") or ()
            yield from [content] if isinstance(content, str) else (part["text"] for part in content)


def _changed(messages: Messages) -> Iterator[Messages]:
    """Yield the shapes: each change alone, then more and more of them."""
    seen = [messages]
    for chosen in _CHOSEN:
        changed = messages
        for change in chosen:
            changed = change(changed)
        if changed not in seen:
            seen.append(changed)
            yield changed


def _system_first(messages: Messages) -> Messages:
    """Make one system message of all, at the beginning."""
    systems = [each for each in messages if each["role"] in _SYSTEM]
    if not systems:
        return messages
    others = [each for each in messages if each["role"] not in _SYSTEM]
    return [_merged(systems) | {"role": "system"}, *others]


def _short_ids(messages: Messages) -> Messages:
    """Write ids of calls as nine letters and digits: the same id always as the same."""
    made = []
    for each in messages:
        changed = dict(each)
        if calls := _calls(each):
            changed["tool_calls"] = [{**call, "id": _short_id(call.get("id"))} for call in calls]
        if "tool_call_id" in each:
            changed["tool_call_id"] = _short_id(each["tool_call_id"])
        made.append(changed)
    return made


def _short_id(given: Any) -> Any:
    if not isinstance(given, str) or _SHORT_ID.fullmatch(given):
        return given
    return sha256(given.encode("utf-8", "surrogatepass")).hexdigest()[:9]


def _one_call_each(messages: Messages) -> Messages:
    """Give each call a message of its own, followed by its result."""
    made: Messages = []
    rest = deque(messages)
    while rest:
        each = rest.popleft()
        calls = _calls(each)
        if len(calls) < 2:
            made.append(each)
            continue
        results = []
        while rest and rest[0]["role"] == "tool":
            results.append(rest.popleft())
        for call in calls:
            made.append({**each, "tool_calls": [call]})
            made += [one for one in results if one.get("tool_call_id") == call.get("id")]
            each = {"role": each["role"], "content": ""}
        ids = [call.get("id") for call in calls]
        made += [one for one in results if one.get("tool_call_id") not in ids]
    return made


def _alternating(messages: Messages) -> Messages:
    """Merge messages of one role in a row; an empty answer comes between a result and a user."""
    made: Messages = []
    for each in messages:
        last = made[-1] if made else {}
        if last.get("role") == each["role"] in ("user", "assistant") and not _calls(last):
            made[-1] = last | each | _merged([last, each])
            continue
        if last.get("role") == "tool" and each["role"] == "user":
            made.append({"role": "assistant", "content": ""})
        made.append(each)
    return made


def _no_system(messages: Messages) -> Messages:
    """Put the system message before the words of the user who comes first."""
    if messages[0]["role"] not in _SYSTEM:
        return messages
    system, *others = messages
    if not others or others[0]["role"] != "user":
        return [{**system, "role": "user"}, *others]
    return [others[0] | _merged([system, others[0]]), *others[1:]]


def _merged(messages: Messages) -> dict[str, Any]:
    """Return the content of several messages as that of one."""
    contents = [content for each in messages if (content := each.get("content"))]
    if all(isinstance(content, str) for content in contents):
        return {"content": "\n\n".join(contents)}
    parts: list[Any] = []
    for content in contents:
        parts += [{"type": "text", "text": "\n\n"}] if parts else []
        parts += content if isinstance(content, list) else [{"type": "text", "text": content}]
    return {"content": parts}


def _calls(message: dict[str, Any]) -> list[dict[str, Any]]:
    calls = message.get("tool_calls")
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        return []
    return calls


_CHANGES: Sequence[Callable[[Messages], Messages]] = (
    _short_ids,
    _system_first,
    _one_call_each,
    _alternating,
    _no_system,
)
_CHOSEN = [
    *((change,) for change in _CHANGES),
    *(_CHANGES[:number] for number in range(2, len(_CHANGES) + 1)),
]
