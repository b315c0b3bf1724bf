"""From a request for a response to one for a chat completion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paged_plugins.server.errors import refused
from paged_plugins.server.http.endpoint import check_depth
from paged_plugins.server.openai.protocol import ChatRequest, Sampled, TokenizeRequest
from paged_plugins.server.responses.protocol import (
    InputItem,
    InputTokensRequest,
    Part,
    ResponsesRequest,
)
from paged_plugins.server.translation.conversation import Conversation, joined

NAMES = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "max_tokens": "max_output_tokens",
    r"response_format\.json_schema": "text.format",
    "response_format": "text.format",
    r"(tools\.\d+)\.function": r"\1",
}
"""By fields of chat completions: what they are called here."""
_LOGPROBS = "message.output_text.logprobs"


def chat_request(body: ResponsesRequest) -> ChatRequest:
    """Return what is asked of the model.

    Raises:
        ApiError: an item of the input is not what it should be.
    """
    has_logprobs = _LOGPROBS in (body.include or ())
    if body.top_logprobs and not has_logprobs:
        raise refused("top_logprobs", f"top_logprobs needs {_LOGPROBS}; add that to include")
    return ChatRequest(
        **{name: getattr(body, name) for name in Sampled.__struct_fields__},
        **_prompt(body),
        logprobs=has_logprobs or None,
        top_logprobs=body.top_logprobs,
        max_completion_tokens=body.max_output_tokens,
        stop=body.stop,
        user=body.user,
        response_format=_form(body),
        tool_choice=_tool_choice(body.tool_choice),
        parallel_tool_calls=body.parallel_tool_calls,
    )


def tokenize_request(body: InputTokensRequest) -> TokenizeRequest:
    """Return what is to be tokenised.

    Raises: as :func:`chat_request`.
    """
    return TokenizeRequest(**_prompt(body))


def _prompt(body: ResponsesRequest | InputTokensRequest) -> dict[str, Any]:
    """Return the fields that make the prompt."""
    return {
        "messages": _conversation(body).messages,
        "tools": _tools(body.tools or ()) or None,
        "chat_template_kwargs": body.chat_template_kwargs,
        "reasoning_effort": body.reasoning.effort if body.reasoning else None,
    }


def _conversation(body: ResponsesRequest | InputTokensRequest) -> Conversation:
    made = Conversation()
    if body.instructions:
        made.say("system", body.instructions)
    if isinstance(body.input, str):
        made.say("user", body.input)
    else:
        for place, item in enumerate(body.input):
            _add(made, item, f"input.{place}")
    return made


def _add(made: Conversation, item: InputItem, path: str) -> None:
    if item.type == "message":
        made.say(_given(item, "role", path), _text(_given(item, "content", path)))
    elif item.type == "reasoning":
        made.think(_text(item.content or item.summary or ""))
    elif item.type == "function_call":
        made.call(
            _given(item, "call_id", path),
            _given(item, "name", path),
            _given(item, "arguments", path),
        )
    else:
        made.give_result(_given(item, "call_id", path), _text(_given(item, "output", path)))


def _given(item: InputItem, name: str, path: str) -> Any:
    value = getattr(item, name)
    if value is None:
        raise refused(f"{path}.{name}", f"{path}.{name} is missing; a {item.type} needs it")
    return value


def _text(content: str | Sequence[Part]) -> str:
    if isinstance(content, str):
        return content
    return joined(part.text or part.refusal for part in content)


def _form(body: ResponsesRequest) -> dict[str, Any] | None:
    """Return the format of the text, with the fields of a schema in an object of their own."""
    given = body.text.format if body.text else None
    if given is None or given.get("type") != "json_schema":
        return given
    check_depth("text.format", given)
    schema = {name: value for name, value in given.items() if name != "type" and value is not None}
    return {"type": "json_schema", "json_schema": schema}


def _tools(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return functions, each in an object of its own; other tools are left to be refused."""
    made = []
    for tool in tools:
        given = {name: value for name, value in tool.items() if value is not None}
        made.append({"type": given.pop("type", None), "function": given})
    return made


def _tool_choice(choice: str | Mapping[str, Any] | None) -> str | dict[str, Any] | None:
    if choice is None or isinstance(choice, str):
        return choice
    check_depth("tool_choice", choice)
    if set(choice) != {"type", "name"} or choice["type"] != "function":
        what = "none, auto, required, or {'type': 'function', 'name': ...}"
        raise refused("tool_choice", f"tool_choice must be {what}")
    return {"type": "function", "function": {"name": choice["name"]}}
