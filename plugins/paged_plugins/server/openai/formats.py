"""Forms of answers: the fields that ask for one, and the calls of tools that may be in it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from paged_core.errors import RequestError
from paged_core.structured_outputs import StructuredOutputs
from paged_core.structured_outputs import structured_outputs as checked_form
from paged_plugins.server.errors import ApiError, refused
from paged_plugins.server.http.endpoint import check_depth, skipped
from paged_plugins.server.openai.protocol import ChatRequest, Generated
from paged_plugins.server.openai.schemas import as_grammars_take_it
from paged_plugins.server.parsers.reasoning_parser import ReasoningFormat
from paged_plugins.server.parsers.tool_parser import Function, ToolFormat
from paged_plugins.server.service import Service

_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,128}")
_START = re.compile(r"^start:", re.MULTILINE)
_RUN_ELSEWHERE = (
    *("apply_patch", "code_interpreter", "computer", "custom", "file_search", "image_generation"),
    *("local_shell", "mcp", "programmatic_tool_calling", "shell", "tool_search", "web_search"),
)
"""Types of tools, or how they begin, that another server runs, or that take what is no JSON."""
_SKIPPED = "; tools that this server cannot run are left out"


@dataclass(frozen=True, slots=True)
class Tools:
    """Tools that an answer may call, or must."""

    format: ToolFormat
    functions: Mapping[str, Mapping[str, Any]]
    """The JSON schemas of their arguments, by name."""
    form: StructuredOutputs | None
    """Grammar that forces a call; ``None``: the model may call one, or not."""
    most: int | None = None
    """Most calls of an answer."""
    only: frozenset[str] | None = None
    """Functions that may be called; ``None``: all of them."""


@dataclass(frozen=True, slots=True)
class Format:
    """Form of an answer, and the parsers that take it apart."""

    sampling: Mapping[str, Any]
    """Sampling parameters that force it."""
    reasoning: ReasoningFormat | None = None
    tools: Tools | None = None
    prompt: str = ""
    """Conversation as the chat template has made it, which may begin the thoughts."""
    warnings: Sequence[str] = ()
    """Parts of schemas that it does not enforce."""


def format_of(service: Service, body: Generated, prompt: str | None = None) -> Format:
    """Return what a request asks for.

    Args:
        prompt: the conversation as the chat template has made it.

    Raises:
        ApiError: this model, or this server, cannot do it.
    """
    warnings: list[str] = []
    form = _asked_form(body, warnings)
    if not isinstance(body, ChatRequest):
        return Format({} if form is None else {"structured_outputs": form}, warnings=warnings)
    warnings += skipped(_skipped(body))
    tools = _tools(service, body, warnings)
    if tools is not None:
        form = tools.form or (form and _form_or_calls(service, body, tools, form, warnings))
    reasoning = service.parsers.reasoning
    has_thoughts = tools is not None and tools.format.has_thoughts
    if form is not None and reasoning is not None and not has_thoughts:
        surely = not service.parsers.is_reasoning_named
        form = replace(form, after=form.after or reasoning.ends_with(prompt or "", surely=surely))
    sampling: dict[str, Any] = {} if form is None else {"structured_outputs": form}
    if reasoning is not None and body.stop and not body.stop_in_reasoning:
        sampling["stop_outside"] = reasoning.around(prompt or "")
    marks = [*(reasoning.marks if reasoning else ()), *(tools.format.marks if tools else ())]
    if shown := service.parsers.special_tokens(marks):
        sampling["shown_token_ids"] = list(shown.values())
    return Format(sampling, reasoning, tools, prompt or "", warnings)


def _asked_form(body: Generated, warnings: list[str]) -> StructuredOutputs | None:
    """Return the form of ``response_format`` or ``structured_outputs``."""
    given = body.response_format
    form = None if given is None else _response_form(given, warnings)
    if body.structured_outputs is None:
        return None if form is None else _checked("response_format", form)
    if form is not None:
        raise refused("structured_outputs", "structured_outputs and response_format: give one")
    form = body.structured_outputs
    if isinstance(schema := form.get("json"), str):
        with suppress(ValueError, RecursionError):
            schema = json.loads(schema)
    if isinstance(schema, Mapping):
        form = {**form, "json": _for_grammar("structured_outputs.json", schema, warnings)}
    return _checked("structured_outputs", form)


def _response_form(given: Mapping[str, Any], warnings: list[str]) -> Mapping[str, Any] | None:
    kind = given.get("type")
    known = {"text": (), "json_object": (), "json_schema": ("json_schema",)}
    if not isinstance(kind, str) or kind not in known:
        raise refused(
            "response_format.type",
            f"response_format.type must be text, json_object or json_schema, not {kind!r}",
        )
    named = given.get("json_schema")
    if kind == "json_schema" and (not isinstance(named, Mapping) or named.get("schema") is None):
        name = "response_format.json_schema"
        what = 'it is an object with the name and the "schema"'
        raise refused(name, f"{name} has no schema: {what}")
    _refuse_others("response_format", given, ("type", *known[kind]))
    if kind == "text":
        return None
    if named is None:
        return {"json_object": True}
    if not isinstance(named["schema"], Mapping | bool):
        name = "response_format.json_schema.schema"
        raise refused(name, f"{name} must be a JSON schema, which is an object")
    _refuse_others(
        "response_format.json_schema", named, ("name", "schema", "strict", "description")
    )
    strict = named.get("strict") is True
    return {"json": _for_grammar("response_format", named["schema"], warnings, strict=strict)}


def _for_grammar(name: str, schema: Any, warnings: list[str], *, strict: bool = False) -> Any:
    """Return a schema as grammars take it; ``warnings`` gain what they leave out."""
    check_depth(name, schema)
    made, left_out = as_grammars_take_it(schema, strict=strict)
    if left_out:
        warnings.append(f"{name} is not held to {', '.join(left_out)}")
    return made if isinstance(made, Mapping) else {"allOf": [made]}


def _checked(name: str, form: Mapping[str, Any]) -> StructuredOutputs | None:
    try:
        return checked_form(name, form)
    except RequestError as error:
        raise refused(name, str(error)) from error


def _refuse_others(name: str, given: Mapping[str, Any], known: Sequence[str]) -> None:
    for key in given:
        if key not in known:
            raise refused(f"{name}.{key}", f"{name}.{key} is no field here; leave it out")


def _tools(service: Service, body: ChatRequest, warnings: list[str]) -> Tools | None:
    """Return how tools are to be called; ``None``: none is."""
    functions = _functions(body)
    choice, only = body.tool_choice, None
    if isinstance(choice, Mapping) and choice.get("type") == "allowed_tools":
        choice, functions = _allowed(choice, functions)
        only = frozenset(each.name for each in functions)
    most = 1 if body.parallel_tool_calls is False else None
    schemas = {each.name: each.parameters for each in functions}
    if choice is None or choice in ("none", "auto"):
        if not functions or choice == "none":
            return None
        written = service.parsers.tools
        if written is None and body.response_format is None and body.structured_outputs is None:
            raise refused(
                "tools",
                "it is not known how this model writes calls of tools: start the server with "
                "--tool-parser NAME (the setting tool_parser), or set tool_choice to required, a "
                "function, or none",
            )
        return Tools(written or service.parsers.forced_tools, schemas, None, most, only)
    if not functions:
        name = _choice_field(body)
        raise refused(name, f"{name} asks for a tool, and there is none in tools{_SKIPPED}")
    if choice != "required":
        functions, most = [_named(choice, functions, _choice_field(body))], 1
        schemas = {each.name: each.parameters for each in functions}
    written = service.parsers.forced_tools
    form = _checked(
        "tools", {"grammar": _grammar(service, body, written, functions, most, warnings)}
    )
    return Tools(written, schemas, form, most)


def _grammar(
    service: Service,
    body: ChatRequest,
    written: ToolFormat,
    functions: Sequence[Function],
    most: int | None,
    warnings: list[str],
) -> str:
    tokens = service.parsers.special_tokens(written.marks)
    given = [tool["function"] for tool in body.tools or () if not runs_elsewhere(tool)]
    strict = {each["name"] for each in given if each.get("strict") is True}
    held = []
    for each in functions:
        name, is_strict = f"tool {each.name}", each.name in strict
        schema = _for_grammar(name, each.parameters, warnings, strict=is_strict)
        held.append(replace(each, parameters=schema))
    try:
        return written.grammar(held, parallel=most != 1, tokens=tokens)
    except ValueError as error:
        raise refused("tools", f"this model cannot be made to call it: {error}") from error


def _form_or_calls(
    service: Service,
    body: ChatRequest,
    tools: Tools,
    form: StructuredOutputs,
    warnings: list[str],
) -> StructuredOutputs | None:
    """Return the grammar of answers that have the form, or are calls."""
    if form.schema is not None:
        rule = f"%json {form.schema}"
    elif form.choice is not None:
        choices = " | ".join(json.dumps(each, ensure_ascii=False) for each in form.choice)
        rule = f"CHOICE\nCHOICE: {choices}"
    else:
        name = "structured_outputs"
        raise refused(name, f"{name} leaves no room for tools; set tool_choice to none")
    functions = [each for each in _functions(body) if each.name in tools.functions]
    calls = _grammar(service, body, tools.format, functions, tools.most, warnings)
    calls = _START.sub("calls_alone:", calls, count=1)
    tokens = service.parsers.special_tokens(tools.format.marks)
    beside = tools.format.beside("form_alone", tokens)
    grammar = f"start: calls_alone | {beside}\nform_alone: {rule}\n{calls}"
    name = "response_format" if body.response_format is not None else "structured_outputs"
    return _checked(name, {"grammar": grammar, "after": form.after})


def _allowed(
    choice: Mapping[str, Any], functions: Sequence[Function]
) -> tuple[str, list[Function]]:
    """Return the choice among the functions that ``allowed_tools`` names, and these."""
    given = choice.get("allowed_tools")
    mode, tools = (given.get("mode"), given.get("tools")) if isinstance(given, Mapping) else (0, 0)
    if mode not in ("auto", "required") or not isinstance(tools, list):
        raise refused(
            "tool_choice", 'tool_choice.allowed_tools must be {"mode": "auto", "tools": [...]}'
        )
    return mode, [_named(each, functions) for each in tools if not runs_elsewhere(each)]


def runs_elsewhere(tool: Mapping[str, Any]) -> bool:
    """Return whether another server runs a tool, or it takes what is no JSON; the model is not told
    of it.
    """
    kind = tool.get("type")
    return isinstance(kind, str) and kind.startswith(_RUN_ELSEWHERE)


def named(tool: Mapping[str, Any]) -> str:
    """Return what a tool that is skipped is called in a warning."""
    kind, custom = tool["type"], tool.get("custom")
    name = (custom if isinstance(custom, Mapping) else tool).get("name")
    return f"{name} ({kind})" if name else kind


def no_tool(path: str, taken: str) -> ApiError:
    """Return the error of a tool whose type is none.

    Args:
        taken: types that are served.
    """
    others = ", ".join(_RUN_ELSEWHERE)
    return refused(f"{path}.type", f"{path}.type must be {taken}; skipped are {others}")


def _skipped(body: ChatRequest) -> list[str]:
    """Return the names of tools that the model is not told of."""
    searches = body.web_search_options is not None
    tools = [named(tool) for tool in body.tools or () if runs_elsewhere(tool)]
    return [*tools, *(["web_search_options"] * searches)]


def with_tools(body: ChatRequest) -> ChatRequest:
    """Return a request with its ``functions``, if it has these, as ``tools``.

    Raises:
        ApiError: it has both, or a choice that is none.
    """
    choice = body.function_call
    if body.functions is None and choice is None:
        return body
    if body.tools is not None or body.tool_choice is not None:
        raise refused("functions", "functions and tools: give one, with its own choice")
    if isinstance(choice, Mapping) and isinstance(choice.get("name"), str):
        choice = {"type": "function", "function": {"name": choice["name"]}}
    elif choice not in (None, "none", "auto"):
        what = 'none, auto, or {"name": ...}'
        raise refused("function_call", f"function_call must be {what}")
    functions = body.functions or ()
    return msgspec.structs.replace(
        body,
        functions=body.functions or [],
        tools=[{"type": "function", "function": each} for each in functions] or None,
        tool_choice=choice,
        parallel_tool_calls=False,
    )


def _choice_field(body: ChatRequest) -> str:
    """Return the name of the field in which a request chooses among its tools."""
    return "tool_choice" if body.functions is None else "function_call"


def _functions(body: ChatRequest) -> list[Function]:
    found: dict[str, Function] = {}
    for place, tool in enumerate(body.tools or ()):
        path = f"tools.{place}"
        if runs_elsewhere(tool):
            continue
        given, what = tool.get("function"), "an object with the name, description and parameters"
        if tool.get("type") != "function":
            raise no_tool(path, f"function, and {path}.function {what}")
        if not isinstance(given, Mapping):
            raise refused(f"{path}.function", f"{path}.function is missing: it is {what}")
        _refuse_others(path, tool, ("type", "function", "cache_control"))
        path = f"{path}.function" if body.functions is None else f"functions.{place}"
        _refuse_others(path, given, ("name", "description", "parameters", "strict"))
        name, schema = given.get("name"), given.get("parameters")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise refused(f"{path}.name", f"{path}.name must be 1 to 128 letters, digits, _ . or -")
        if name in found:
            raise refused(f"{path}.name", f"two of the tools are called {name!r}")
        if schema is not None and not isinstance(schema, Mapping):
            raise refused(f"{path}.parameters", f"{path}.parameters must be a JSON schema")
        found[name] = Function(name, schema or {})
    return list(found.values())


def _named(choice: Any, functions: Sequence[Function], field: str = "tool_choice") -> Function:
    """Return the function that a choice names."""
    given = choice.get("function") if isinstance(choice, Mapping) else None
    if not isinstance(given, Mapping) or choice.get("type") != "function":
        what = 'none, auto, required, or {"type": "function", "function": {"name": ...}}'
        raise refused(field, f"{field} must be {what}{_SKIPPED}")
    for each in functions:
        if each.name == given.get("name"):
            return each
    raise refused(field, f"{field} names {given.get('name')!r}, which is no tool{_SKIPPED}")
