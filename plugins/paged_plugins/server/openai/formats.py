"""What the text of an answer must be, and how it is taken apart: the fields that ask for it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import uuid4

from paged_core.errors import RequestError
from paged_core.structured_outputs import StructuredOutputs
from paged_core.structured_outputs import structured_outputs as checked_form
from paged_core.text.outputs import Logprob
from paged_plugins.server.errors import refused
from paged_plugins.server.openai.protocol import (
    CalledFunction,
    ChatRequest,
    Generated,
    MadeToolCall,
)
from paged_plugins.server.parsers.reasoning_parser import ReasoningParser
from paged_plugins.server.parsers.tool_parser import (
    CallBegins,
    Function,
    Piece,
    Text,
    ToolFormat,
    ToolParser,
)
from paged_plugins.server.service import Service

_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")


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


Parser = Callable[[ChatDelta], ChatDelta]
"""Takes what one answer gained, with all of the text in ``content``, and returns what of it is
shown, and as what. It is called for each answer in its order."""


@dataclass(frozen=True, slots=True)
class Format:
    """How a request wants its text."""

    sampling: Mapping[str, Any] = field(default_factory=dict)
    """Sampling parameters that force it."""
    make_parser: Callable[[], Parser] | None = None
    """Makes a parser for each answer; ``None``: the text is the content."""


def format_of(service: Service, body: Generated, prompt: str | None = None) -> Format:
    """Return what a request asks for.

    Args:
        prompt: of a conversation, as the chat template has made it.

    Raises:
        ApiError: this model, or this server, cannot do it.
    """
    form = _asked_form(body)
    if not isinstance(body, ChatRequest):
        return Format({} if form is None else {"structured_outputs": form})
    tools = _tools(service, body)
    if tools is not None and form is not None:
        name = "response_format" if body.response_format is not None else "structured_outputs"
        raise refused(name, f"{name} leaves no room for tools; set tool_choice to none")
    if tools is not None:
        form = tools.form
    reasoning = service.parsers.reasoning
    if form is not None and reasoning is not None:
        surely = not service.parsers.is_reasoning_named
        form = replace(form, after=form.after or reasoning.ends_with(prompt or "", surely=surely))
    sampling: dict[str, Any] = {} if form is None else {"structured_outputs": form}
    if tools is not None and tools.format.shows_special_tokens:
        sampling["skip_special_tokens"] = False
    if tools is None and reasoning is None:
        return Format(sampling)

    def make_parser() -> Parser:
        return AnswerParser(
            None if reasoning is None else reasoning.parser(prompt or ""),
            None if tools is None else tools.format.parser(tools.names),
            shows_text=tools is None or tools.form is None,
            shows_thoughts=body.include_reasoning is not False,
        )

    return Format(sampling, make_parser)


# ---------------------------------------------------------------------- what is asked for


def _asked_form(body: Generated) -> StructuredOutputs | None:
    """Return the form of ``response_format`` or ``structured_outputs``."""
    given = body.response_format
    form = None if given is None else _response_form(given)
    if body.structured_outputs is None:
        return None if form is None else _checked("response_format", form)
    if form is not None:
        raise refused("structured_outputs", "structured_outputs and response_format: give one")
    return _checked("structured_outputs", body.structured_outputs)


def _response_form(given: Mapping[str, Any]) -> Mapping[str, Any] | None:
    kind = given.get("type")
    known = {"text": (), "json_object": (), "json_schema": ("json_schema",)}
    if not isinstance(kind, str) or kind not in known:
        raise refused(
            "response_format.type",
            f"response_format.type must be text, json_object or json_schema, not {kind!r}",
        )
    _refuse_others("response_format", given, ("type", *known[kind]))
    if kind == "text":
        return None
    if kind == "json_object":
        return {"json_object": True}
    named = given.get("json_schema")
    if not isinstance(named, Mapping) or "schema" not in named:
        raise refused("response_format.json_schema", "response_format.json_schema has no schema")
    _refuse_others(
        "response_format.json_schema", named, ("name", "schema", "strict", "description")
    )
    return {"json": named["schema"]}


def _checked(name: str, form: Mapping[str, Any]) -> StructuredOutputs | None:
    try:
        return checked_form(name, form)
    except RequestError as error:
        raise refused(name, str(error)) from error


def _refuse_others(name: str, given: Mapping[str, Any], known: Sequence[str]) -> None:
    for key in given:
        if key not in known:
            raise refused(f"{name}.{key}", f"{name}.{key} is no field here; leave it out")


@dataclass(frozen=True, slots=True)
class _Tools:
    format: ToolFormat
    names: frozenset[str]
    form: StructuredOutputs | None
    """``None``: the model may call one, or not."""


def _tools(service: Service, body: ChatRequest) -> _Tools | None:
    """Return how tools are to be called; ``None``: none is."""
    functions = _functions(body.tools or ())
    choice = body.tool_choice
    if choice is None or choice in ("none", "auto"):
        if not functions or choice == "none":
            return None
        if service.parsers.tools is None:
            raise refused(
                "tools",
                "it is not known how this model writes calls of tools: name it with the setting "
                "tool_parser, or set tool_choice to required, a function, or none",
            )
        return _Tools(service.parsers.tools, frozenset(each.name for each in functions), None)
    if not functions:
        raise refused("tool_choice", "tool_choice asks for a tool, and there is none in tools")
    parallel = choice == "required" and body.parallel_tool_calls is not False
    if choice != "required":
        functions = [_named(choice, functions)]
    written = service.parsers.forced_tools
    try:
        grammar = written.grammar(functions, parallel=parallel)
    except ValueError as error:
        raise refused("tools", f"this model cannot be made to call it: {error}") from error
    names = frozenset(each.name for each in functions)
    return _Tools(written, names, _checked("tools", {"grammar": grammar}))


def _functions(tools: Sequence[Mapping[str, Any]]) -> list[Function]:
    found: dict[str, Function] = {}
    for place, tool in enumerate(tools):
        path = f"tools.{place}"
        if tool.get("type") != "function":
            raise refused(f"{path}.type", f"{path}.type must be function")
        _refuse_others(path, tool, ("type", "function"))
        given = tool.get("function")
        if not isinstance(given, Mapping):
            raise refused(f"{path}.function", f"{path}.function is missing")
        path = f"{path}.function"
        _refuse_others(path, given, ("name", "description", "parameters", "strict"))
        name, schema = given.get("name"), given.get("parameters")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise refused(f"{path}.name", f"{path}.name must be 1 to 64 letters, digits, _ . or -")
        if name in found:
            raise refused(f"{path}.name", f"two of the tools are called {name!r}")
        if schema is not None and not isinstance(schema, Mapping):
            raise refused(f"{path}.parameters", f"{path}.parameters must be a JSON schema")
        found[name] = Function(name, schema or {})
    return list(found.values())


def _named(choice: Any, functions: Sequence[Function]) -> Function:
    """Return the function that ``tool_choice`` names."""
    given = choice.get("function") if isinstance(choice, Mapping) else None
    if not isinstance(given, Mapping) or choice.get("type") != "function":
        what = "none, auto, required, or {'type': 'function', 'function': {'name': ...}}"
        raise refused("tool_choice", f"tool_choice must be {what}")
    for each in functions:
        if each.name == given.get("name"):
            return each
    raise refused("tool_choice", f"tool_choice names {given.get('name')!r}, which is no tool")


# ---------------------------------------------------------------------- what came


class AnswerParser:
    """Takes one answer apart: thoughts first, then calls and text.

    Args:
        shows_text: what is in no call; where calls are forced, it is the beginning of one.
        shows_thoughts: or they are dropped.
    """

    def __init__(
        self,
        reasoning: ReasoningParser | None,
        tools: ToolParser | None,
        *,
        shows_text: bool,
        shows_thoughts: bool,
    ) -> None:
        self._reasoning, self._tools = reasoning, tools
        self._shows_text, self._shows_thoughts = shows_text, shows_thoughts
        self._num_calls = 0

    def __call__(self, delta: ChatDelta) -> ChatDelta:
        """Return what is shown of what was gained; tokens and log-probabilities stay."""
        has_ended = delta.finish_reason is not None
        thoughts, answer = self._split(delta.content or "", has_ended=has_ended)
        pieces: list[Piece] = [Text(answer)] if answer else []
        if self._tools is not None:
            pieces = [*self._tools.feed(answer), *(self._tools.end() if has_ended else ())]
        calls = self._calls(pieces)
        reason = delta.finish_reason
        if reason == "stop" and self._num_calls:
            reason = "tool_calls"
        return replace(
            delta,
            content="".join(
                piece.text for piece in pieces if isinstance(piece, Text) and self._shows_text
            ),
            reasoning_content=(self._shows_thoughts and thoughts) or None,
            tool_calls=calls or None,
            finish_reason=reason,
        )

    def _split(self, text: str, *, has_ended: bool) -> tuple[str, str]:
        """Return what is thought, and what is not."""
        if self._reasoning is None:
            return "", text
        found = [*self._reasoning.feed(text), *(self._reasoning.end() if has_ended else ())]
        return (
            "".join(each.text for each in found if each.is_reasoning),
            "".join(each.text for each in found if not each.is_reasoning),
        )

    def _calls(self, pieces: Sequence[Piece]) -> list[MadeToolCall]:
        """Return what calls gained, one entry for each."""
        made: dict[int, MadeToolCall] = {}
        for piece in pieces:
            if isinstance(piece, Text):
                continue
            if isinstance(piece, CallBegins):
                place = self._num_calls
                self._num_calls += 1
                made[place] = MadeToolCall(
                    function=CalledFunction(name=piece.name, arguments=""),
                    index=place,
                    id=f"call_{uuid4().hex[:24]}",
                    type="function",
                )
                continue
            place = self._num_calls - 1
            gain = made.setdefault(
                place, MadeToolCall(function=CalledFunction(arguments=""), index=place)
            )
            gain.function.arguments = (gain.function.arguments or "") + piece.text
        return list(made.values())
