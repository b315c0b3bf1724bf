"""JSON schemas, whose parts are changed where they are schemas, and not where they are values."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

_LISTS = {"allOf", "anyOf", "oneOf", "prefixItems", "items"}
_NAMED = {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"}
_SINGLE = {
    *("items", "additionalItems", "additionalProperties", "contains", "propertyNames"),
    *("not", "if", "then", "else", "unevaluatedItems", "unevaluatedProperties"),
}


def changed(
    schema: Any, change: Callable[[dict[str, Any]], Any], *, but: Collection[str] = ()
) -> Any:
    """Return a schema in which ``change`` was applied to each part, from the innermost one on.

    Args:
        change: returns what takes the place of a part, which it may alter.
        but: keywords below which nothing is changed.
    """
    if not isinstance(schema, Mapping):
        return schema
    made: dict[str, Any] = {}
    for key, value in schema.items():
        if key in but:
            pass
        elif key in _NAMED and isinstance(value, Mapping):
            value = {name: changed(part, change, but=but) for name, part in value.items()}
        elif key in _LISTS and isinstance(value, list | tuple):
            value = [changed(part, change, but=but) for part in value]
        elif key in _SINGLE:
            value = changed(value, change, but=but)
        made[key] = value
    return change(made)
