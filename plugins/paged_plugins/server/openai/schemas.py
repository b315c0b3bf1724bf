"""JSON schemas as clients make them, and as grammars take them.

What says nothing about an output, or can be said in another way, is changed without a word. What a
grammar cannot say is left out where the output may then be more than the schema allows, and is
named; the rest is left to the grammar, which refuses what it does not know.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from paged_core.json_schema import changed

_FORMATS = {
    *("date-time", "time", "date", "duration", "email", "hostname"),
    *("ipv4", "ipv6", "uuid", "uri"),
}
"""Formats of texts that grammars know."""
_TEXT = {"type": "string"}
_UNENFORCED = ("dependentRequired", "uniqueItems")
_APPLIED_TOO = {"allOf", "anyOf", "oneOf", "$ref", "dependentSchemas", "if"}
"""Keywords by which an object has further properties that are evaluated."""
_ESCAPED_OR_CLASS = r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]"
_ASSERTION = re.compile(rf"\\[bB]|\(\?<?[=!]|{_ESCAPED_OR_CLASS}", re.DOTALL)
_BRACKET = re.compile(rf"{_ESCAPED_OR_CLASS}|[()]", re.DOTALL)


def as_grammars_take_it(schema: Any, *, strict: bool) -> tuple[Any, list[str]]:
    """Return a schema, and the names of what it says and its grammar will not.

    Args:
        strict: objects have the properties that are named, and no others.
    """
    left_out: dict[str, None] = {}

    def change(part: dict[str, Any]) -> Any:
        names = part.pop("propertyNames", True)
        if names not in (True, {}, _TEXT):
            left_out["propertyNames"] = None
        if part.get("not") in ({}, True):
            return False
        for name in _UNENFORCED:
            if part.pop(name, False):
                left_out[name] = None
        if part.get("unevaluatedProperties") is False:
            del part["unevaluatedProperties"]
            if part.keys() & _APPLIED_TOO:
                left_out["unevaluatedProperties"] = None
            else:
                part.setdefault("additionalProperties", False)
        part, is_exact = _told_apart(part, schema)
        if not is_exact:
            left_out["oneOf"] = None
        kind, form, pattern = part.get("type"), part.get("format"), part.get("pattern")
        may_be_text = (
            kind is None or kind == "string" or (isinstance(kind, list) and "string" in kind)
        )
        if isinstance(form, str) and form not in _FORMATS and may_be_text:
            left_out[f"format {form!r}"] = None
            del part["format"]
        if isinstance(pattern, str) and (plain := _without_assertions(pattern)) != pattern:
            left_out["look-around of a pattern"] = None
            part["pattern"] = plain
        return _with_null(part) if part.pop("nullable", None) is True else part

    made = changed(schema, change, but=("not",))
    return (_closed(made) if strict else made), list(left_out)


def _told_apart(part: dict[str, Any], root: Any) -> tuple[dict[str, Any], bool]:
    """Return a part without ``oneOf`` that no grammar takes, and whether it means the same.

    The tag by which choices differ is required: no two of them are then met.
    """
    given, choices = part.get("discriminator"), part.get("oneOf")
    name: Any = given.get("propertyName") if isinstance(given, Mapping) else None
    if not isinstance(choices, list) or "anyOf" in part:
        return part, True
    is_tagged = isinstance(name, str) and _differ([_tags(each, name, root) for each in choices])
    if not is_tagged and any(
        _differ([kinds(_resolved(each, root)) for each in choices]) for kinds in (_values, _types)
    ):
        return part, True
    rest = {key: value for key, value in part.items() if key not in ("oneOf", "discriminator")}
    made = [_requiring(name, choice) for choice in choices] if is_tagged else choices
    return {**rest, "anyOf": made}, is_tagged


def _differ(sets: list[set[str]]) -> bool:
    """Return whether no value is in two of the sets, none of which is empty."""
    return all(sets) and len(set().union(*sets)) == sum(map(len, sets))


def _types(choice: Any) -> set[str]:
    kind = choice.get("type") if isinstance(choice, Mapping) else None
    kinds = kind if isinstance(kind, list) else [kind]
    return {each for each in kinds if isinstance(each, str)}


def _values(choice: Any) -> set[str]:
    """Return the values, as JSON, that there are of a kind; none: it has no list of them."""
    if not isinstance(choice, Mapping):
        return set()
    values = [choice["const"]] if "const" in choice else choice.get("enum")
    return {json.dumps(each) for each in values} if isinstance(values, list) else set()


def _requiring(name: str, choice: dict[str, Any]) -> dict[str, Any]:
    required = choice.get("required") or []
    is_there = not isinstance(required, list) or name in required
    return choice if is_there else {**choice, "required": [*required, name]}


def _resolved(choice: Any, root: Any) -> Any:
    steps = choice.get("$ref", "") if isinstance(choice, Mapping) else ""
    if isinstance(steps, str) and steps.startswith("#/"):
        choice = root
        for step in steps[2:].split("/"):
            choice = choice.get(step) if isinstance(choice, Mapping) else None
    return choice


def _tags(choice: Any, name: str, root: Any) -> set[str]:
    """Return the values, as JSON, that a property of objects is limited to; none: it is not."""
    inner = choice.get("oneOf", choice.get("anyOf")) if isinstance(choice, Mapping) else None
    choice = _resolved(choice, root)
    if not isinstance(choice, Mapping):
        return set()
    if isinstance(inner, list):  # in place: references might go round in circles
        found = [_tags(each, name, root) for each in inner]
        return set().union(*found) if all(found) else set()
    properties = choice.get("properties")
    if choice.get("type") != "object" or not isinstance(properties, Mapping):
        return set()
    return _values(properties.get(name))


def _with_null(part: dict[str, Any]) -> dict[str, Any]:
    """Allow null, as ``nullable`` of OpenAPI does."""
    kind = part.get("type")
    if kind is None or "const" in part:
        return {"anyOf": [part, {"type": "null"}]}
    if isinstance(part.get("enum"), list) and None not in part["enum"]:
        part["enum"] = [*part["enum"], None]
    kinds = kind if isinstance(kind, list) else [kind]
    return {**part, "type": list(dict.fromkeys([*kinds, "null"]))}


def _closed(schema: Any) -> Any:
    """Close the objects that name their properties, but for those that others add to."""

    def change(part: dict[str, Any]) -> Any:
        is_open = "properties" in part and not part.keys() & {
            *("additionalProperties", "patternProperties", "allOf", "$ref"),
        }
        return {**part, "additionalProperties": False} if is_open else part

    return changed(schema, change, but=("allOf", "not", "if"))


def _without_assertions(pattern: str) -> str:
    """Return a pattern that matches what this one does, and more: it looks at nothing around."""
    made, at = "", 0
    while found := _ASSERTION.search(pattern, at):
        made += pattern[at : found.start()]
        at = found.end()
        if not found[0].startswith("("):
            made += found[0] if found[0] not in ("\\b", "\\B") else ""
            continue
        depth = 1
        while depth and (bracket := _BRACKET.search(pattern, at)):
            depth += {"(": 1, ")": -1}.get(bracket[0], 0)
            at = bracket.end()
        if depth:
            return pattern  # a bracket is missing: the grammar says so
    return made + pattern[at:]
