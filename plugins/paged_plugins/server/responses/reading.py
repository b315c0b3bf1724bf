"""Requests for responses, translated onto chat completions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

import msgspec

from paged_plugins.server.errors import refused
from paged_plugins.server.http.endpoint import check_depth, skipped
from paged_plugins.server.openai.formats import named, no_tool, runs_elsewhere
from paged_plugins.server.openai.protocol import (
    ChatRequest,
    OpenAIRequest,
    TokenizeRequest,
    check_refusals,
    read_again,
)
from paged_plugins.server.responses.protocol import (
    Calls,
    InputItem,
    Part,
    ResponsesRequest,
    Results,
    Skipped,
)
from paged_plugins.server.translation.conversation import Conversation, joined

_LOGPROBS = "message.output_text.logprobs"
_CALLS, _RESULTS, _SKIPPED = (frozenset(get_args(each)) for each in (Calls, Results, Skipped))
_OF_FUNCTION = ("name", "description", "parameters", "strict")
_WITHOUT_EFFECT = ("async", "allowed_callers", "defer_loading", "output_schema", "cache_control")
_NO_NAMESPACE = "functions"
"""Namespace of functions that are given in none."""


class Reading:
    """Request for a response, as a chat.

    Raises:
        ApiError: an item or a tool is not what it should be.
    """

    def __init__(self, body: ResponsesRequest) -> None:
        self._body, self.tools = body, Tools()
        self._made = Conversation()
        self._skipped: dict[str, None] = {}
        self.tools.add(body.tools or (), "tools")
        if body.instructions:
            self._made.say("system", body.instructions)
        if isinstance(body.input, str):
            self._made.say("user", body.input)
        else:
            for place, item in enumerate(body.input):
                self._add(item, f"input.{place}")

    @property
    def warnings(self) -> Iterator[str]:
        """Parts of it that are not served, though the rest is."""
        return skipped(self.tools.skipped, self._skipped)

    def chat(self) -> ChatRequest:
        """Return what is asked of the model.

        Raises:
            ApiError: fields do not fit each other.
        """
        body = self._body
        return ChatRequest(
            **{name: getattr(body, name) for name in OpenAIRequest.__struct_fields__},
            **self._prompt(),
            logprobs=bool(body.top_logprobs) or _LOGPROBS in (body.include or ()),
            top_logprobs=body.top_logprobs,
            max_completion_tokens=body.max_output_tokens,
            response_format=_form(body),
            tool_choice=_tool_choice(body.tool_choice),
            parallel_tool_calls=body.parallel_tool_calls,
        )

    def tokenized(self) -> TokenizeRequest:
        """Return what is to be tokenised."""
        return TokenizeRequest(**self._prompt())

    def _prompt(self) -> dict[str, Any]:
        """Return the fields that make the prompt."""
        body = self._body
        return {
            "messages": self._made.said(self._skipped),
            "tools": self.tools.functions or None,
            "chat_template_kwargs": body.chat_template_kwargs,
            "reasoning_effort": body.reasoning.effort if body.reasoning else None,
        }

    def _add(self, item: InputItem, path: str) -> None:
        made = self._made
        if item.type == "message":
            role, content = _given(item, "role", path), _given(item, "content", path)
            if isinstance(content, list):
                check_refusals(role, content, path)
            made.say(role, _text(content))
        elif item.type == "agent_message":
            made.say("user", _text(_given(item, "content", path)))
        elif item.type == "reasoning":
            made.think(_text(item.content or item.summary or ""))
        elif item.type == "additional_tools":
            self.tools.add(_given(item, "tools", path), f"{path}.tools")
        elif item.type in _CALLS:
            name, arguments = _call(item, path)
            made.call(item.call_id or _given(item, "id", path), name, arguments)
        elif item.type in _RESULTS:
            self.tools.add(item.tools or (), f"{path}.tools")
            made.give_result(item.call_id or _given(item, "id", path), _output(item, path))
        else:
            assert item.type in _SKIPPED
            self._skipped[item.type] = None


class Tools:
    """Functions that the model may call, by names that no two of them share."""

    def __init__(self) -> None:
        self.functions: list[dict[str, Any]] = []
        self.skipped: list[str] = []
        self.names: dict[str, tuple[str, str]] = {}
        """Namespaces and own names of functions, by the names that the model knows."""

    def add(self, tools: Sequence[Mapping[str, Any]], path: str, namespace: str = "") -> None:
        """Add what a list has.

        Raises:
            ApiError: a tool is none.
        """
        for place, tool in enumerate(tools):
            where, kind = f"{path}.{place}", tool.get("type")
            if kind == "namespace" and not namespace and isinstance(tool.get("name"), str):
                inner = tool.get("tools") or ()
                if not isinstance(inner, Sequence) or not all(
                    isinstance(t, Mapping) for t in inner
                ):
                    raise refused(f"{where}.tools", f"{where}.tools must be a list of tools")
                self.add(inner, f"{where}.tools", tool["name"])
            elif kind == "function":
                self._add_function(tool, where, namespace)
            elif runs_elsewhere(tool):
                self.skipped.append(named(tool))
            else:
                raise no_tool(where, "function or namespace")

    def _add_function(self, tool: Mapping[str, Any], path: str, namespace: str) -> None:
        if "function" in tool:
            message = f"{path}: give its name, description and parameters beside its type"
            raise refused(path, message)
        given = {
            key: value
            for key, value in tool.items()
            if key != "type" and value is not None and key not in _WITHOUT_EFFECT
        }
        name = given.get("name")
        if namespace and namespace != _NO_NAMESPACE and isinstance(name, str):
            given["name"] = qualified(namespace, name)
            self.names[given["name"]] = namespace, name
        self.functions.append({"type": "function", "function": given})


def qualified(namespace: str | None, name: str) -> str:
    """Return the name that the model knows a function by."""
    if not namespace or namespace == _NO_NAMESPACE:
        return name
    return f"{namespace}{'' if namespace.endswith('__') else '__'}{name}"


def _given(item: InputItem, name: str, path: str) -> Any:
    value = getattr(item, name)
    if value is None:
        raise refused(f"{path}.{name}", f"{path}.{name} is missing; {_a(item.type)} needs it")
    return value


def _a(kind: str) -> str:
    return f"an {kind}" if kind[0] in "aeiou" else f"a {kind}"


def _call(item: InputItem, path: str) -> tuple[str, str]:
    """Return the name of what was called, and its arguments as JSON."""
    if item.type == "function_call":
        arguments = _given(item, "arguments", path)
        if not isinstance(arguments, str):
            raise refused(f"{path}.arguments", f"{path}.arguments must be a text of JSON")
        return qualified(item.namespace, _given(item, "name", path)), arguments
    if item.type == "custom_tool_call":
        made: Any = {"input": _given(item, "input", path)}
        return qualified(item.namespace, _given(item, "name", path)), _json(made)
    made = item.action or item.operation or item.arguments or {}
    check_depth(path, made)
    return item.type.removesuffix("_call"), _json(made)


def _output(item: InputItem, path: str) -> str:
    """Return the text of what a call gave."""
    given = item.output
    if item.type == "tool_search_output":
        return _json([tool.get("name") for tool in item.tools or ()])
    if given is None or isinstance(given, str):
        return _given(item, "output", path) if item.type in _WITH_OUTPUT else given or ""
    check_depth(path, given)
    if item.type not in _WITH_OUTPUT:
        return _json(given)
    return _text(read_again(given, list[Part], f"{path}.output"))


_WITH_OUTPUT = ("function_call_output", "custom_tool_call_output")


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


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
    if "json_schema" in given:
        raise refused("text.format", "text.format: give its name and schema beside its type")
    schema = {name: value for name, value in given.items() if name != "type" and value is not None}
    return {"type": "json_schema", "json_schema": schema}


def _tool_choice(choice: str | Mapping[str, Any] | None) -> str | dict[str, Any] | None:
    if choice is None or isinstance(choice, str):
        return choice
    check_depth("tool_choice", choice)
    if choice.get("type") == "allowed_tools" and isinstance(choice.get("tools"), list):
        named = [_tool_choice(each) for each in choice["tools"] if isinstance(each, Mapping)]
        return {
            "type": "allowed_tools",
            "allowed_tools": {"mode": choice.get("mode"), "tools": named},
        }
    name, namespace = choice.get("name"), choice.get("namespace")
    if choice.get("type") != "function" or not isinstance(name, str):
        what = 'none, auto, required, allowed_tools, or {"type": "function", "name": ...}'
        message = f"tool_choice must be {what}; tools that this server cannot run are left out"
        raise refused("tool_choice", message)
    return {"type": "function", "function": {"name": qualified(namespace, name)}}
