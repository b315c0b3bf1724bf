"""Calls whose arguments are each between tags, without the quotes of JSON: Qwen3-Coder and GLM.

What a value is says the schema of the argument: a text as it stands, or JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from paged_plugins.server.parsers.call_grammar import Literal, property_schemas
from paged_plugins.server.parsers.calls import CallReader
from paged_plugins.server.parsers.json_text import SPACE, JsonText, held_back
from paged_plugins.server.parsers.marked_calls import Marks, Reader, head_of
from paged_plugins.server.parsers.tool_formats import MarkedFormat, Written
from paged_plugins.server.parsers.tool_parser import (
    Arguments,
    CallBegins,
    Function,
    Functions,
    Piece,
    Text,
)

_TYPES = frozenset({"string", "number", "integer", "boolean", "null", "array", "object"})
_BY_CLASS: Mapping[type, str] = {
    **{str: "string", float: "number", int: "integer", bool: "boolean"},
    **{type(None): "null", list: "array", dict: "object"},
}
_TEXT = frozenset({"string"})
_MOST_REFERENCES = 8


class TaggedFormat(MarkedFormat):
    """A subclass says which tags there are."""

    head: ClassVar[re.Pattern[str]]
    """All before the first argument; its group is the name."""
    key: ClassVar[re.Pattern[str]]
    """All before a value; its group is the name of the argument."""
    close: ClassVar[str]
    """Mark at the end of a value."""
    newline: ClassVar[str]
    """Text that may be around a value, once, and is no part of it."""
    end: ClassVar[str]
    """Mark at the end of the arguments."""
    around_value: ClassVar[tuple[str, str]]
    """Text before a value, with its name as ``{}``, and behind it, in forced calls."""
    any_name: ClassVar[bool] = False
    """True if the tags alone say that it is a call."""

    def reader(self, functions: Functions, mark: str, letter: str, /) -> Reader:
        return CallReader() if letter in "{[" else _TaggedReader(self, functions)

    def rules(
        self, name: str, function: Function, written: Written, text: Literal, /
    ) -> Sequence[str]:
        required = function.parameters.get("required", ())
        rules, parts = list[str](), [text(written.before.replace("{}", function.name))]
        for place, (key, schema) in enumerate(property_schemas(function).items()):
            if not re.fullmatch(r"[^\s<>]+", key):
                raise ValueError(f"{key!r} cannot be the name of an argument in tags")
            argument = f"{name}_argument_{place}"
            parts.append(argument + ("" if key in required else "?"))
            begin = text(self.around_value[0].replace("{}", key))
            rules += self._value_rules(argument, schema, begin, self.around_value[1], text)
        return [f"{name}: {' '.join([*parts, text(written.behind)])}", *rules]

    def _value_rules(
        self, name: str, schema: Mapping[str, Any], begin: str, behind: str, text: Literal
    ) -> list[str]:
        value = f"{name}_value"
        if permitted(schema) != _TEXT:
            rules = [
                f"{value}: {value}_json {text(behind)}",
                f"{value}_json: %json {json.dumps(schema)}",
            ]
        elif choices := schema.get("enum", [schema["const"]] if "const" in schema else ()):
            if any(self.close in choice for choice in choices):
                raise ValueError(f"{self.close!r} cannot be in a value")
            either = " | ".join(json.dumps(choice, ensure_ascii=False) for choice in choices)
            rules = [f"{value}: ({either}) {text(behind)}"]
        else:
            rest = text(behind[behind.index(self.close) + len(self.close) :])
            if (close := text(self.close)).startswith("<"):
                rules = [rf"{value}: /(.|\n)*/ {close} {rest}"]
            else:
                rules = [
                    f"{value}: {value}_text {rest}",
                    rf"{value}_text[suffix={close}]: /(.|\n)*/",
                ]
        return [f"{name}: {begin} {value}", *rules]


class Qwen3CoderFormat(TaggedFormat):
    """``<tool_call><function=f><parameter=x>...</parameter></function></tool_call>``: Qwen3-Coder
    and later ones. The first mark may be missing."""

    layout = Marks(begins=("<tool_call>", "<function="), ends=("</tool_call>",))
    head = re.compile(r"(?:<function=)?([^\s<>{}]+)>")
    key = re.compile(r"<parameter=([^<>]+)>")
    close, newline, end = "</parameter>", "\n", "</function>"
    written = Written("<tool_call>\n<function={}>\n", "</function>\n</tool_call>", "\n")
    around_value = ("<parameter={}>\n", "\n</parameter>\n")
    any_name = True


class Glm4Format(TaggedFormat):
    """``<tool_call>f<arg_key>x</arg_key><arg_value>...</arg_value></tool_call>``: GLM 4.5 and
    later ones."""

    layout = Marks(begins=("<tool_call>",))
    inner_marks = ("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "</tool_call>")
    head = re.compile(r"([^\s<>{}]+)\s*(?=<arg_key>|</tool_call>)")
    key = re.compile(r"<arg_key>([^<>]+)</arg_key>\s*<arg_value>")
    close, newline, end = "</arg_value>", "", "</tool_call>"
    written = Written("<tool_call>{}\n", "</tool_call>", "\n")
    around_value = ("<arg_key>{}</arg_key>\n<arg_value>", "</arg_value>\n")


class _TaggedReader:
    """Reads one call; values that are text are passed on as they grow."""

    def __init__(self, tags: TaggedFormat, functions: Functions) -> None:
        self._tags, self._functions = tags, functions
        self._name = ""
        self._key = ""
        """Name of the argument that is being read; empty: none is."""
        self._types = _TYPES
        self._is_fresh = False
        """True until something of the value has come."""
        self._value: list[str] = []
        """Parts of a value that is passed on when it is whole."""
        self.has_begun = self.done = False
        self.left = ""
        self._closings = (tags.newline + tags.close, tags.close)

    def take(self, text: str, start: int, pieces: list[Piece], /) -> int:
        place = start
        if not self._name:
            head = head_of(self._tags.head, text, start)
            if head is None:
                return start
            self._name, place = head[1], head.end()
            if self._name not in self._functions and not self._tags.any_name:
                raise ValueError(f"no function is called {self._name!r}")
        while place < len(text) and not self.done:
            step = self._in_value if self._key else self._between
            before, place = place, step(text, place, pieces)
            if place == before:
                break
        return place

    def end(self, pieces: list[Piece], /) -> None:
        """Add the beginning of a value that is no text: what it was to be is not certain."""
        if self._value:
            pieces.append(Text("".join(self._value)))

    def _between(self, text: str, start: int, pieces: list[Piece]) -> int:
        """Read what is between values."""
        if text[start] in SPACE:
            return start + 1
        if text.startswith(self._tags.end, start):
            self._emit(pieces, "}" if self.has_begun else "{}")
            self.done = True
            return start + len(self._tags.end)
        if self._tags.end.startswith(text[start : start + len(self._tags.end)]):
            return start
        self.left = text[start:]
        if text[start] != "<":
            raise ValueError(f"{text[start]!r} where it may not be")
        key = head_of(self._tags.key, text, start)
        if key is None:
            return start
        self._key, self._is_fresh = key[1].strip(), True
        schema = _mapping(self._functions.get(self._name))
        self._types = _permitted_by(
            _mapping(schema.get("properties")).get(self._key), schema, _MOST_REFERENCES
        )
        self._emit(pieces, ("," if self.has_begun else "{") + json.dumps(self._key) + ":")
        if self._types == _TEXT:
            self._emit(pieces, '"')
        return key.end()

    def _in_value(self, text: str, start: int, pieces: list[Piece]) -> int:
        tags = self._tags
        if self._is_fresh:
            self._is_fresh = False
            if tags.newline and text.startswith(tags.newline, start):
                return start + len(tags.newline)
        end = text.find(tags.close, start)
        if end < 0:
            sure = len(text) - held_back(text[start:], *self._closings)
            self._grow(text[start:sure], pieces)
            return sure
        value = text[start:end]
        self._grow(value.removesuffix(tags.newline) if tags.newline else value, pieces)
        if self._types == _TEXT:
            self._emit(pieces, '"')
        else:
            self._emit(pieces, as_json("".join(self._value), self._types))
        self._key, self._value = "", []
        return end + len(tags.close)

    def _grow(self, value: str, pieces: list[Piece]) -> None:
        if self._types != _TEXT:
            self._value.append(value)
        elif value:
            self._emit(pieces, json.dumps(value, ensure_ascii=False)[1:-1])

    def _emit(self, pieces: list[Piece], arguments: str) -> None:
        if not self.has_begun:
            pieces.append(CallBegins(self._name))
            self.has_begun = True
        pieces.append(Arguments(arguments))


def as_json(value: str, types: frozenset[str]) -> str:
    """Return a value between tags as JSON, of one of these types if it can be one."""
    bare, read = value.strip(), JsonText()
    try:
        if bare and read.take(bare + "\n", 0) >= len(bare) and read.done:
            made = read.written()
            kind = _BY_CLASS[type(json.loads(made))]
            if kind in types or "string" not in types or (kind == "integer" and "number" in types):
                return made if kind != "string" or bare[0] in "\"'" else json.dumps(value)
    except ValueError:
        pass  # it is no JSON, even with faults
    return json.dumps(value, ensure_ascii=False)


def permitted(schema: Mapping[str, Any], references: int = _MOST_REFERENCES) -> frozenset[str]:
    """Return the types that a schema may permit."""
    found, root = _TYPES, schema
    kinds = schema.get("type")
    if isinstance(kinds, str):
        found &= {kinds}
    elif isinstance(kinds, Sequence):
        found &= frozenset(kinds)
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(values, Sequence) and not isinstance(values, str):
        found &= {_BY_CLASS.get(type(value), "object") for value in values}
    for key in ("anyOf", "oneOf"):
        if isinstance(options := schema.get(key), Sequence):
            each = [_permitted_by(option, root, references) for option in options]
            found &= frozenset().union(*each)
    for option in schema.get("allOf") or ():
        found &= _permitted_by(option, root, references)
    if isinstance(reference := schema.get("$ref"), str):
        target: Any = schema
        for part in reference.removeprefix("#/").split("/"):
            target = _mapping(target).get(part)
        found &= _permitted_by(target, root, references)
    return found


def _permitted_by(schema: Any, root: Mapping[str, Any], references: int) -> frozenset[str]:
    if not isinstance(schema, Mapping) or not references:
        return _TYPES
    shared = {key: root[key] for key in ("$defs", "definitions") if key in root}
    return permitted({**shared, **schema}, references - 1)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
