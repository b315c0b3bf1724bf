"""Calls as Python writes them, ``[f(x=1), g(y="a")]``: Llama 3.2 and 4, Gemma and others.

Calls are passed on when all of the list or the block is there: what it means is known only then.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Any

from paged_plugins.server.parsers.call_grammar import Literal, literals, property_schemas
from paged_plugins.server.parsers.calls import CallReader
from paged_plugins.server.parsers.json_text import held_back
from paged_plugins.server.parsers.marked_calls import Marks, Reader, head_of
from paged_plugins.server.parsers.tool_formats import MarkedFormat, Written
from paged_plugins.server.parsers.tool_parser import (
    Arguments,
    CallBegins,
    Function,
    Functions,
    Piece,
)

_NAMES = {"true": True, "false": False, "null": None}
_MOST = 1 << 20
"""Characters of a list."""
_HEAD = re.compile(r"\[\s*+(?:(?P<name>[\w.-]+)(?P<rest>[^\w.-])|[^\w.-])")
_PARTS = re.compile(r"""(?P<plain>[^][(){}'"\\]+)|\\.?|.""", re.DOTALL)
_CLOSING = dict(zip(")]}", "([{", strict=True))


class _PythonReader:
    """Reads a list of calls, or a block of them up to a mark.

    Args:
        names: of the functions.
        closing: the mark; empty: it is a list, which ends where its bracket does.
    """

    def __init__(self, names: Collection[str], closing: str = "") -> None:
        self._names, self._closing = names, closing
        self._text: list[str] = []
        self._num_taken = 0
        self._open: list[str] = []
        self._quote = ""
        self._is_sure = bool(closing)
        self.has_begun = self.done = False
        self.left = ""

    def take(self, text: str, start: int, pieces: list[Piece], /) -> int:
        if not self._is_sure:
            head = head_of(_HEAD, text, start)
            if head is None and "[".startswith(text[start : start + 1]):
                return start
            if head is None or head["rest"] != "(" or head["name"] not in self._names:
                raise ValueError("no list of calls")
            self._is_sure = True
        end = self._end_of_block(text, start) if self._closing else self._end_of_list(text, start)
        self._text.append(text[start:end])
        self._num_taken += end - start
        if self._num_taken > _MOST:
            raise ValueError("too long")
        if self.done:
            self._pass_on(pieces)
        return end

    def end(self, pieces: list[Piece], /) -> None:
        with suppress(ValueError):
            self._pass_on(pieces)

    def _end_of_block(self, text: str, start: int) -> int:
        place = text.find(self._closing, start)
        self.done = place >= 0
        return place if self.done else len(text) - held_back(text[start:], self._closing)

    def _end_of_list(self, text: str, start: int) -> int:
        place = start
        while place < len(text) and not self.done:
            part = _PARTS.match(text, place)
            assert part is not None
            if part[0] == "\\":  # what it escapes has not come
                return place
            place = part.end()
            letter = "" if part["plain"] else part[0]
            if self._quote:
                self._quote = "" if letter == self._quote else self._quote
            elif letter in ("'", '"'):
                self._quote = letter
            elif letter and letter in "([{":
                self._open.append(letter)
            elif letter in _CLOSING:
                if self._open.pop() != _CLOSING[letter]:
                    raise ValueError("brackets that do not match")
                self.done = not self._open
        return place

    def _pass_on(self, pieces: list[Piece]) -> None:
        try:
            tree = ast.parse("".join(self._text).strip())
            calls = [each for line in tree.body for each in _calls(line, self._names)]
        except (SyntaxError, RecursionError, MemoryError) as error:
            raise ValueError(str(error)) from error
        if not calls:
            raise ValueError("no call")
        pieces += [piece for call in calls for piece in call]
        self.has_begun = self.done = True


class PythonicFormat(MarkedFormat):
    """``[f(x=1), g(y="a")]`` where an answer begins."""

    layout = Marks(around=())
    written = Written("", "", ", ", "[", "]")

    def reader(self, functions: Functions, mark: str, letter: str, /) -> Reader:
        return _PythonReader(functions)

    def rules(
        self, name: str, function: Function, written: Written, text: Literal, /
    ) -> Sequence[str]:
        return _write(name, function)


class Llama4PythonicFormat(PythonicFormat):
    """The same, which may also be between ``<|python_start|>`` and ``<|python_end|>``: Llama 4."""

    layout = Marks(begins=("<|python_start|>",), at_start=True, around=(), ends=("<|python_end|>",))


class GemmaFormat(PythonicFormat):
    """A block of code, ``tool_code``; where an answer begins also a list of calls, or JSON with
    ``parameters``: the three that are published for Gemma 3."""

    layout = Marks(
        begins=("```tool_code",), at_start=True, around=(("```json", "```"),), ends=("```",)
    )
    written = Written("", "", "\n", "```tool_code\n", "\n```")

    def reader(self, functions: Functions, mark: str, letter: str, /) -> Reader:
        if mark:
            return _PythonReader(functions, closing="```")
        return CallReader(functions) if letter == "{" else _PythonReader(functions)


def _write(name: str, function: Function) -> list[str]:
    """Return the rules of one call: what it requires, then what it may have beside."""
    text = literals({})
    required = function.parameters.get("required", ())
    rules, needed, others = list[str](), list[str](), list[str]()
    for place, (key, schema) in enumerate(property_schemas(function).items()):
        if not key.isidentifier():
            raise ValueError(f"{key!r} cannot be the name of an argument in Python")
        argument = f"{name}_argument_{place}"
        (needed if key in required else others).append(argument)
        rules.append(f"{argument}: {text(f'{key}=')} {argument}_value")
        rules.append(f"{argument}_value: %json {json.dumps(schema)}")
    tails = [f' (", " {each})?' for each in others]
    if needed or not others:
        inside = ' ", " '.join(needed) + "".join(tails)
    else:  # any of them may be the first
        firsts = [each + "".join(tails[place:]) for place, each in enumerate(others, 1)]
        inside = f"({' | '.join(firsts)})?"
    return [f"{name}: {text(f'{function.name}(')} {inside} {text(')')}", *rules]


def _calls(line: ast.stmt, names: Collection[str]) -> list[tuple[Piece, Piece]]:
    """Read a list of calls, or one.

    Raises:
        ValueError: it is none.
    """
    tree = line.value if isinstance(line, ast.Expr) else None
    found: list[tuple[Piece, Piece]] = []
    for call in tree.elts if isinstance(tree, ast.List) else [tree]:
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "print" and call.args:
            call = call.args[0]  # what a notebook would show
        call, name = _named(call)
        if not isinstance(call, ast.Call) or call.args:
            raise ValueError("no call with named arguments")
        if name not in names:
            raise ValueError(f"no function is called {name!r}")
        arguments = {word.arg: _value(word.value) for word in call.keywords}
        if None in arguments:
            raise ValueError("an argument without a name")
        written = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        found.append((CallBegins(name), Arguments(written)))
    return found


def _named(node: ast.expr | None) -> tuple[ast.expr | None, str]:
    """Return a call and its name; one with dashes is a difference to Python."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
        call, name = _named(node.right)
        return call, f"{ast.unparse(node.left).replace(' ', '')}-{name}"
    return node, ast.unparse(node.func) if isinstance(node, ast.Call) else ""


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Name) and node.id in _NAMES:
        return _NAMES[node.id]
    if isinstance(node, ast.List | ast.Tuple):
        return [_value(each) for each in node.elts]
    if isinstance(node, ast.Dict):
        keys = [ast.literal_eval(key) if key is not None else None for key in node.keys]
        if not all(isinstance(key, str) for key in keys):
            raise ValueError("a key that is no text")
        return dict(zip(keys, map(_value, node.values), strict=True))
    value = ast.literal_eval(node)
    if not isinstance(value, str | int | float | bool | None):
        raise ValueError("a value that JSON does not have")
    return value
