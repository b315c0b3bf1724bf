"""Values that a part of a body may have, for the error of one that it may not."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

from msgspec import inspect

_STEPS = re.compile(r"\[[^\]]*\]|[^.\[\]]+")
_type_info = cache(inspect.type_info)


def allowed_values(body: Any, path: str) -> list[Any]:
    """Return the values that are listed for a field.

    Args:
        body: type of the body.
        path: of the field, such as ``messages[0].role``.
    """
    kinds = [_type_info(body)]
    steps = _STEPS.findall(path)
    for place, step in enumerate(steps):
        is_last = place == len(steps) - 1
        kinds = [inner for kind in kinds for inner in _within(kind, step, is_last=is_last)]
    found = [value for kind in kinds for value in _values(kind)]
    return list(dict.fromkeys(found))


def _within(kind: Any, step: str, *, is_last: bool) -> Iterator[Any]:
    """Yield the types that a part of a value of some type may have."""
    if isinstance(kind, inspect.UnionType):
        for each in kind.types:
            yield from _within(each, step, is_last=is_last)
    elif isinstance(kind, inspect.StructType):
        if is_last and step == kind.tag_field:
            yield inspect.LiteralType((kind.tag,))
        yield from (field.type for field in kind.fields if field.encode_name == step)
    elif step.startswith("["):
        item = getattr(kind, "item_type", None) or getattr(kind, "value_type", None)
        if item is not None:
            yield item


def _values(kind: Any) -> Iterator[Any]:
    if isinstance(kind, inspect.UnionType):
        for each in kind.types:
            yield from _values(each)
    elif isinstance(kind, inspect.LiteralType):
        yield from kind.values
