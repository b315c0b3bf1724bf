"""From a request for a message to one for a chat completion."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import msgspec

from paged_plugins.server.anthropic.protocol import (
    CountTokensRequest,
    MessagesRequest,
    SentMessage,
    SentText,
    SentThinking,
    SentToolResult,
    SentToolUse,
    ToolChoice,
)
from paged_plugins.server.errors import refused
from paged_plugins.server.http.endpoint import check_depth
from paged_plugins.server.openai.protocol import ChatRequest, Sampled, TokenizeRequest
from paged_plugins.server.translation.conversation import Conversation, joined

NAMES = {
    "max_completion_tokens": "max_tokens",
    "stop": "stop_sequences",
    r"response_format\.json_schema": "output_config.format",
    "response_format": "output_config.format",
    r"(tools\.\d+)\.function\.parameters": r"\1.input_schema",
    r"(tools\.\d+)\.function": r"\1",
}
"""By fields of chat completions: what they are called here."""


def chat_request(body: MessagesRequest) -> ChatRequest:
    """Return what is asked of the model.

    Raises:
        ApiError: a block is where none such may be.
    """
    choice, config = body.tool_choice, body.output_config
    schema = config.format if config else None
    return ChatRequest(
        **{name: getattr(body, name) for name in Sampled.__struct_fields__},
        **_prompt(body),
        max_completion_tokens=body.max_tokens,
        stop=body.stop_sequences,
        user=body.metadata.user_id if body.metadata else None,
        response_format=(
            {"type": "json_schema", "json_schema": {"schema": schema.schema}} if schema else None
        ),
        tool_choice=_tool_choice(choice),
        parallel_tool_calls=(
            False if choice is not None and choice.disable_parallel_tool_use else None
        ),
    )


def tokenize_request(body: CountTokensRequest) -> TokenizeRequest:
    """Return what is to be tokenised.

    Raises:
        ApiError: a block is where none such may be.
    """
    return TokenizeRequest(model=body.model, **_prompt(body))


def _prompt(body: MessagesRequest | CountTokensRequest) -> dict[str, Any]:
    """Return the fields that make the prompt."""
    made = Conversation()
    if body.system:
        made.say("system", _text(body.system))
    for place, message in enumerate(body.messages):
        _add(made, message, f"messages.{place}")
    last = made.messages[-1] if made.messages else None
    continues = (
        last is not None and last.role == "assistant" and last.content and not last.tool_calls
    )
    tools = [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                **({"description": tool.description} if tool.description is not None else {}),
                "parameters": tool.input_schema,
            },
        }
        for tool in body.tools or ()
    ]
    return {
        "messages": made.messages if body.messages else [],
        "tools": tools or None,
        "continue_final_message": True if continues else None,
        "chat_template_kwargs": _template_options(body),
    }


def _add(made: Conversation, message: SentMessage, path: str) -> None:
    content = message.content or ""
    if isinstance(content, str):
        made.say(message.role, content)
        return
    place = 0
    for kind, group in groupby(content, type):
        blocks: Sequence[Any] = list(group)
        where = f"{path}.content.{place}"
        place += len(blocks)
        if kind is SentText:
            made.say(message.role, _text(blocks))
            continue
        needed = "user" if kind is SentToolResult else "assistant"
        if message.role != needed:
            name = blocks[0].__struct_config__.tag
            raise refused(where, f"{where}: a {name} block is for messages of the {needed}")
        for each in blocks:
            if isinstance(each, SentThinking):
                made.think(each.thinking)
            elif isinstance(each, SentToolUse):
                check_depth(where, each.input)
                made.call(each.id, each.name, msgspec.json.encode(each.input).decode())
            else:
                made.give_result(each.tool_use_id, _result(each))


def _text(content: str | Sequence[SentText]) -> str:
    return content if isinstance(content, str) else joined(block.text for block in content)


def _result(block: SentToolResult) -> str:
    text = _text(block.content or "")
    return f"Error: {text}" if block.is_error else text


def _template_options(body: MessagesRequest | CountTokensRequest) -> dict[str, Any] | None:
    """Return what the chat template is told; the client's own words come first."""
    own: dict[str, Any] = {}
    if body.thinking is not None and body.thinking.type != "adaptive":
        own["enable_thinking"] = body.thinking.type == "enabled"
    if body.output_config is not None and body.output_config.effort is not None:
        own["reasoning_effort"] = body.output_config.effort
    return own | (body.chat_template_kwargs or {}) or None


def _tool_choice(choice: ToolChoice | None) -> str | dict[str, Any] | None:
    if choice is None:
        return None
    if (choice.name is None) == (choice.type == "tool"):
        raise refused("tool_choice.name", "tool_choice.name is for the type tool, and needed there")
    if choice.type == "tool":
        return {"type": "function", "function": {"name": choice.name}}
    return {"any": "required"}.get(choice.type, choice.type)
