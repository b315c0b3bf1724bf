"""Grammars of calls, in Lark's notation, that models are forced to write."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from paged_plugins.server.parsers.tool_parser import Function

_MOST_CALLS = 16
"""In an answer that is forced to have calls."""

Literal = Callable[[str], str]
"""Text as a grammar writes it."""


def literals(tokens: Mapping[str, int]) -> Literal:
    """Return what writes text in a grammar, with special tokens by their ids; nothing for none."""
    marks = re.compile("|".join(f"({re.escape(mark)})" for mark in tokens) or r"(?!)")

    def literal(text: str) -> str:
        place, parts = 0, []
        for mark in marks.finditer(text):
            parts += [text[place : mark.start()], mark[0]]
            place = mark.end()
        return " ".join(
            f"<[{tokens[part]}]>" if part in tokens else json.dumps(part, ensure_ascii=False)
            for part in [*parts, text[place:]]
            if part
        )

    return literal


def calls_grammar(
    functions: Sequence[Function],
    write: Callable[[str, Function], Sequence[str]],
    *,
    parallel: bool,
    between: str = "",
    around: tuple[str, str] = ("", ""),
) -> str:
    """Return a grammar of answers that consist of a call or of several.

    Args:
        write: makes the rules of a call of a function: the first has the name that is given, and
            the names of others begin with it.
        between: what stands between two calls, as the grammar writes it.
        around: what stands around all, likewise.
    """
    names = [f"call_{number}" for number in range(len(functions))]
    more = f"({between} call){{0,{_MOST_CALLS - 1}}}" if parallel else ""
    rules = [
        f"start: {around[0]} call {more} {around[1]}",
        f"call: {' | '.join(names)}",
        *(rule for name, each in zip(names, functions, strict=True) for rule in write(name, each)),
    ]
    return "\n".join(rules)


def property_schemas(function: Function) -> dict[str, dict[str, Any]]:
    """Return the schema of each argument, with all that it can refer to."""
    schema, kept = function.parameters, ("$defs", "definitions")
    shared: dict[str, Any] = {key: schema[key] for key in kept if key in schema}
    properties = schema.get("properties") or {}
    return {
        name: {**(value if isinstance(value, Mapping) else {}), **shared}
        for name, value in properties.items()
    }
