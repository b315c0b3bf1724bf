"""Calls as Python writes them, ``[f(x=1), g(y="a")]``: Llama 3.2 and 4, and others.

A call is passed on when all of the list is there: what it means is known only then.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from paged_plugins.server.parsers.tool_formats import (
    arguments_schema,
    calls_rules,
    literal,
)
from paged_plugins.server.parsers.tool_parser import (
    Arguments,
    CallBegins,
    Function,
    Piece,
    Text,
    ToolFormat,
    ToolParser,
)

_NAMES = {"true": True, "false": False, "null": None}
_MOST = 1 << 20
"""Characters of a list."""


class PythonicParser(ToolParser):
    """Reads an answer that is a list of calls from its first letter on, or is text."""

    def __init__(self, names: Collection[str]) -> None:
        self._begins = [f"[{name}(" for name in names]
        self._names = names
        self._held: list[str] = []
        self._size = 0
        self._head = ""
        """First letters that are no white space, as many as show whether a call begins."""
        self._is_text = False

    def feed(self, text: str, /) -> Sequence[Piece]:
        if self._is_text:
            return [Text(text)] if text else []
        self._held.append(text)
        self._size += len(text)
        longest = max(map(len, self._begins), default=1)
        if len(self._head) < longest:
            self._head = (self._head + text).lstrip()[:longest]
        begins = any(each.startswith(self._head[: len(each)]) for each in self._begins)
        if (not self._head or begins) and self._size <= _MOST:
            return []
        return self._give_up()

    def end(self) -> Sequence[Piece]:
        if self._is_text or not self._size:
            return []
        try:
            calls = _calls("".join(self._held).strip(), self._names)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return self._give_up()
        self._held.clear()
        return [piece for call in calls for piece in call]

    def _give_up(self) -> Sequence[Piece]:
        held, self._is_text = "".join(self._held), True
        self._held.clear()
        return [Text(held)]


class PythonicFormat(ToolFormat):
    """``[f(x=1), g(y="a")]``."""

    def __init__(self, options: object, /) -> None:
        pass

    def parser(self, names: Collection[str], /) -> ToolParser:
        return PythonicParser(names)

    def grammar(self, functions: Sequence[Function], /, *, parallel: bool) -> str:
        rules: list[str] = []
        for number, each in enumerate(functions):
            rules += _function_rules(number, each)
        return calls_rules(len(functions), parallel, ", ", ("[", "]")) + "\n".join(rules)


def _function_rules(number: int, function: Function) -> list[str]:
    """Return the rules of one function: what it requires, then what it may have beside."""
    schema = arguments_schema(function)
    shared = {key: schema[key] for key in ("$defs", "definitions", "x-guidance") if key in schema}
    properties = schema.get("properties") or {}
    required = [name for name in properties if name in schema.get("required", ())]
    others = [name for name in properties if name not in required]
    rules, places = [], {}
    for place, name in enumerate(properties):
        if not name.isidentifier():
            raise ValueError(f"{name!r} cannot be the name of an argument in Python")
        places[name] = f"argument_{number}_{place}"
        value = properties[name]
        value = {**value, **shared} if isinstance(value, Mapping) else shared
        rules.append(f"{places[name]}: {literal(f'{name}=')} value_{number}_{place}")
        rules.append(f"value_{number}_{place}: %json {json.dumps(value)}")
    head = ' ", " '.join(places[name] for name in required)
    tail = "".join(f' (", " {places[name]})?' for name in others)
    if required or not others:
        inside = f"{head}{tail}"
    else:  # any of them may be the first
        firsts = [
            places[name] + "".join(f' (", " {places[other]})?' for other in others[place + 1 :])
            for place, name in enumerate(others)
        ]
        inside = f"({' | '.join(firsts)})?"
    rules.append(f"call_{number}: {literal(f'{function.name}(')} {inside} {literal(')')}")
    return rules


def _calls(text: str, names: Collection[str]) -> list[tuple[Piece, Piece]]:
    """Read a list of calls.

    Raises:
        SyntaxError, ValueError: it is none.
    """
    tree = ast.parse(text, mode="eval").body
    if not isinstance(tree, ast.List) or not tree.elts:
        raise ValueError("no list of calls")
    found: list[tuple[Piece, Piece]] = []
    for call in tree.elts:
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.args:
            raise ValueError("no call with named arguments")
        if call.func.id not in names:
            raise ValueError(f"no function is called {call.func.id!r}")
        arguments = {word.arg: _value(word.value) for word in call.keywords}
        if None in arguments:
            raise ValueError("an argument without a name")
        written = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        found.append((CallBegins(call.func.id), Arguments(written)))
    return found


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
