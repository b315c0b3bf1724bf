"""Calls written as JSON objects: after a mark, between two, or from the first letter on."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Any

from paged_plugins.server.parsers.calls import CallReader
from paged_plugins.server.parsers.marked_calls import MarkedCallParser, Marks
from paged_plugins.server.parsers.tool_parser import Function, ToolFormat, ToolParser

_MOST_CALLS = 16
"""In an answer that is forced to have calls."""
_WHITESPACE = r"\x20?"
"""Between parts of arguments that are forced: what models write in calls."""


class _JsonFormat(ToolFormat):
    def __init__(self, options: object, /) -> None:
        pass


class HermesFormat(_JsonFormat):
    """``<tool_call>{"name": ..., "arguments": ...}</tool_call>``: Hermes, Qwen and many others."""

    def parser(self, names: Collection[str], /) -> ToolParser:
        marks = Marks(begins=("<tool_call>",), ends=("</tool_call>",))
        return MarkedCallParser(marks, lambda *_: CallReader())

    def grammar(self, functions: Sequence[Function], /, *, parallel: bool) -> str:
        begin, end = '<tool_call>\n{"name": ', "}\n</tool_call>"
        return calls_grammar(
            functions, parallel, begin=begin, arguments="arguments", end=end, between="\n"
        )


class Llama3JsonFormat(_JsonFormat):
    """``{"name": ..., "parameters": ...}``: Llama 3.1 and 3.2; further calls come after ``;``."""

    def parser(self, names: Collection[str], /) -> ToolParser:
        marks = Marks(optional=("<|python_tag|>",), between=";")
        return MarkedCallParser(marks, lambda *_: CallReader(names))

    def grammar(self, functions: Sequence[Function], /, *, parallel: bool) -> str:
        return calls_grammar(
            functions, parallel, begin='{"name": ', arguments="parameters", end="}", between="; "
        )


class MistralFormat(_JsonFormat):
    """``[TOOL_CALLS][{"name": ..., "arguments": ...}, ...]``: Mistral."""

    shows_special_tokens = True

    def parser(self, names: Collection[str], /) -> ToolParser:
        marks = Marks(begins=("[TOOL_CALLS]",))
        return MarkedCallParser(marks, lambda *_: CallReader())

    def grammar(self, functions: Sequence[Function], /, *, parallel: bool) -> str:
        return calls_grammar(
            functions,
            parallel,
            begin='{"name": ',
            arguments="arguments",
            end="}",
            between=", ",
            around=("[TOOL_CALLS][", "]"),
        )


def calls_grammar(
    functions: Sequence[Function],
    parallel: bool,
    *,
    begin: str,
    arguments: str,
    end: str,
    between: str,
    around: tuple[str, str] = ("", ""),
) -> str:
    """Return a grammar of calls, whose arguments each have the schema of their function."""
    rules = []
    for number, each in enumerate(functions):
        head = f'{begin}{json.dumps(each.name)}, "{arguments}": '
        rules.append(f"call_{number}: {literal(head)} arguments_{number} {literal(end)}")
        rules.append(f"arguments_{number}: %json {json.dumps(arguments_schema(each))}")
    return calls_rules(len(functions), parallel, between, around) + "\n".join(rules)


def calls_rules(count: int, parallel: bool, between: str, around: tuple[str, str]) -> str:
    """Return the rules of answers that consist of a call or of several."""
    more = f" ({literal(between)} call){{0,{_MOST_CALLS - 1}}}" if parallel else ""
    parts = [literal(around[0]), f"call{more}", literal(around[1])]
    choices = " | ".join(f"call_{number}" for number in range(count))
    return f"start: {' '.join(filter(None, parts))}\ncall: {choices}\n"


def literal(text: str) -> str:
    """Return text as a grammar writes it; nothing for none."""
    return json.dumps(text, ensure_ascii=False) if text else ""


def arguments_schema(function: Function) -> dict[str, Any]:
    """Return the schema of arguments, an object in any case."""
    schema = {"type": "object", **function.parameters}
    schema["x-guidance"] = {"whitespace_pattern": _WHITESPACE}
    return schema
