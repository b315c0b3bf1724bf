"""The content of a message, where it is given as a list of parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paged_core.errors import RequestError
from paged_core.field_rules import shown

_TEXT = ("text", "input_text", "output_text")


def with_joined_text(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a message whose content is one text; a space joins parts, as in ``transformers``.

    Raises:
        RequestError: a part is not text.
    """
    content = message.get("content")
    if not isinstance(content, list | tuple):
        return message
    return {**message, "content": " ".join(map(_text, content))}


def _text(part: object) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        raise RequestError(
            "a part of a message's content is a dictionary such as {'type': 'text', 'text': "
            f"'Hello'}}, not a {type(part).__name__}"
        )
    kind, text = part.get("type"), part.get("text")
    if not isinstance(kind, str) or kind not in _TEXT:
        raise RequestError(
            f"a part of a message's content has the type {shown(kind)}, which the models here "
            "cannot read; give parts of type 'text'"
        )
    if not isinstance(text, str):
        raise RequestError(f"a part of type {kind!r} needs a 'text' that is text")
    return text
