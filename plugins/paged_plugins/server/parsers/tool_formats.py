"""Formats whose calls are between marks, and those of them that write a call as a JSON object."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from paged_plugins.server.parsers.call_grammar import calls_grammar, json_call, literals
from paged_plugins.server.parsers.calls import CallReader
from paged_plugins.server.parsers.marked_calls import MarkedCallParser, Marks, Reader
from paged_plugins.server.parsers.tool_parser import Function, ToolFormat, ToolParser


class MarkedFormat(ToolFormat):
    """Calls between marks: a subclass says which, and how one call is read and written.

    Args:
        options: without any.
    """

    layout: ClassVar[Marks]
    inner_marks: ClassVar[tuple[str, ...]] = ()
    """Marks within calls."""

    def __init__(self, options: object, /) -> None:
        layout = self.layout
        self.begins = layout.begins
        self.marks = tuple(
            dict.fromkeys((*layout.begins, *layout.optional, *self.inner_marks, *layout.ends))
        )

    def parser(self, functions: Mapping[str, Mapping[str, Any]], /) -> ToolParser:
        return MarkedCallParser(
            self.layout, lambda mark, letter: self.reader(functions, mark, letter)
        )

    @abstractmethod
    def reader(
        self, functions: Mapping[str, Mapping[str, Any]], mark: str, letter: str, /
    ) -> Reader:
        """Return a reader of a call that begins with ``letter`` behind ``mark``."""


class HermesFormat(MarkedFormat):
    """``<tool_call>{"name": ..., "arguments": ...}</tool_call>``: Hermes, Qwen and many others."""

    layout = Marks(begins=("<tool_call>",), ends=("</tool_call>",))

    def reader(
        self, functions: Mapping[str, Mapping[str, Any]], mark: str, letter: str, /
    ) -> Reader:
        return CallReader()

    def grammar(
        self, functions: Sequence[Function], /, *, parallel: bool, tokens: Mapping[str, int]
    ) -> str:
        text = literals(tokens)

        def write(name: str, function: Function) -> list[str]:
            head = f'<tool_call>\n{{"name": {json.dumps(function.name)}, "arguments": '
            return json_call(name, function, text(head), text("}\n</tool_call>"))

        return calls_grammar(functions, write, parallel=parallel, between=text("\n"))


class Llama3JsonFormat(MarkedFormat):
    """``{"name": ..., "parameters": ...}``: Llama 3.1 and 3.2; further calls come after ``;``."""

    layout = Marks(
        optional=("<|python_tag|>", "<|python_start|>"), between=";", ends=("<|python_end|>",)
    )

    def reader(
        self, functions: Mapping[str, Mapping[str, Any]], mark: str, letter: str, /
    ) -> Reader:
        return CallReader(functions)

    def grammar(
        self, functions: Sequence[Function], /, *, parallel: bool, tokens: Mapping[str, int]
    ) -> str:
        text = literals(tokens)

        def write(name: str, function: Function) -> list[str]:
            head = f'{{"name": {json.dumps(function.name)}, "parameters": '
            return json_call(name, function, text(head), text("}"))

        return calls_grammar(functions, write, parallel=parallel, between=text("; "))
