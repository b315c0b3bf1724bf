"""Formats whose calls are between marks, and those of them that write a call as a JSON object."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple

from paged_plugins.server.parsers.call_grammar import (
    Literal,
    calls_grammar,
    literals,
)
from paged_plugins.server.parsers.calls import CallReader
from paged_plugins.server.parsers.marked_calls import MarkedCallParser, Marks, Reader
from paged_plugins.server.parsers.tool_parser import (
    Function,
    Functions,
    ToolFormat,
    ToolParser,
)


class Written(NamedTuple):
    """Text of forced calls."""

    before: str
    """Before the arguments of a call, with ``{}`` for the name; ``"{}"``: as JSON."""
    behind: str
    between: str = ""
    begin: str = ""
    """Before all calls."""
    end: str = ""


class MarkedFormat(ToolFormat):
    """Calls between marks: a subclass says which, and how one call is read and written."""

    layout: ClassVar[Marks]
    inner_marks: ClassVar[tuple[str, ...]] = ()
    """Marks within calls."""
    written: ClassVar[Written]

    def __init__(self, options: object = None, /) -> None:
        layout = self.layout
        self.begins = layout.begins
        self.marks = tuple(
            dict.fromkeys((*layout.begins, *layout.optional, *self.inner_marks, *layout.ends))
        )

    def parser(self, functions: Functions, /) -> ToolParser:
        return MarkedCallParser(
            self.layout, lambda mark, letter: self.reader(functions, mark, letter)
        )

    @abstractmethod
    def reader(self, functions: Functions, mark: str, letter: str, /) -> Reader:
        """Return a reader of a call that begins with ``letter`` behind ``mark``."""

    def grammar(
        self, functions: Sequence[Function], /, *, parallel: bool, tokens: Mapping[str, int]
    ) -> str:
        written, text = self.written_with(tokens), literals(tokens)
        return calls_grammar(
            functions,
            lambda name, function: self.rules(name, function, written, text),
            parallel=parallel,
            between=text(written.between),
            around=(text(written.begin), text(written.end)),
        )

    def written_with(self, tokens: Mapping[str, int], /) -> Written:
        """Return how calls are written where these marks are tokens."""
        return self.written

    def rules(
        self, name: str, function: Function, written: Written, text: Literal, /
    ) -> Sequence[str]:
        """Return the rules of one call, the first of this name; its arguments are JSON."""
        said = json.dumps(function.name)
        before = written.before.replace('"{}"', said).replace("{}", function.name)
        schema = json.dumps(function.parameters)
        return (
            f"{name}: {text(before)} {name}_arguments {text(written.behind)}",
            f"{name}_arguments: %json {schema}",
        )


class HermesFormat(MarkedFormat):
    """``<tool_call>{"name": ..., "arguments": ...}</tool_call>``: Hermes, Qwen and many others."""

    layout = Marks(begins=("<tool_call>",), ends=("</tool_call>",))
    written = Written('<tool_call>\n{"name": "{}", "arguments": ', "}\n</tool_call>", "\n")

    def reader(self, functions: Functions, mark: str, letter: str, /) -> Reader:
        return CallReader()


class Llama3JsonFormat(MarkedFormat):
    """``{"name": ..., "parameters": ...}``: Llama 3.1 and 3.2; further calls come after ``;``."""

    layout = Marks(
        optional=("<|python_tag|>", "<|python_start|>"), between=";", ends=("<|python_end|>",)
    )
    written = Written('{"name": "{}", "parameters": ', "}", "; ")

    def reader(self, functions: Functions, mark: str, letter: str, /) -> Reader:
        return CallReader(functions)
