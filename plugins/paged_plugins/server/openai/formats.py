"""What the text of an answer must be, and how it is taken apart: the fields that ask for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from paged_core.text.outputs import Logprob
from paged_plugins.server.errors import refused
from paged_plugins.server.openai.protocol import ChatRequest, Generated, MadeToolCall
from paged_plugins.server.service import Service


@dataclass(slots=True)
class ChatDelta:
    """What one answer to a conversation gained."""

    index: int
    content: str | None
    token_ids: list[int]
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: str | None = None
    """stop, length or tool_calls; ``None``: it goes on."""
    stop_reason: int | str | None = None
    reasoning_content: str | None = None
    tool_calls: list[MadeToolCall] | None = None


Parser = Callable[[ChatDelta], ChatDelta | None]
"""Takes what one answer gained, with all of the text in ``content``, and returns what of it is
shown, and as what; ``None``: nothing yet. It is called for each answer in its order."""


@dataclass(frozen=True, slots=True)
class Format:
    """How a request wants its text."""

    sampling: Mapping[str, Any] = field(default_factory=dict)
    """Sampling parameters that force it."""
    make_parser: Callable[[], Parser] | None = None
    """Makes a parser for each answer; ``None``: the text is the content."""


_TEXT = Format()
_UNSET: Mapping[str, Any] = {"type": "text"}


def format_of(service: Service, body: Generated) -> Format:
    """Return what a request asks for.

    Raises:
        ApiError: this model, or this server, cannot do it.
    """
    if body.response_format is not None and body.response_format != _UNSET:
        raise _not_served("response_format")
    if body.structured_outputs is not None:
        raise _not_served("structured_outputs")
    if isinstance(body, ChatRequest):
        if body.tools:
            raise _not_served("tools")
        if body.tool_choice not in (None, "none", "auto"):
            raise _not_served("tool_choice")
    return _TEXT


def _not_served(name: str) -> Exception:
    return refused(name, f"{name} is not served here; leave it out")
