"""Types of settings as help and listings name them."""

from __future__ import annotations

from types import NoneType
from typing import Any, Literal, get_args, get_origin

from paged_core.config.field_types import members

_NAMES = {int: "int", float: "float", bool: "bool", str: "text", NoneType: "null"}


def type_name(kind: Any) -> str:
    """Return a short name: ``int``, ``text or null``, ``auto, float32 or float16``."""
    names: list[str] = []
    for member in members(kind):
        if get_origin(member) is Literal:
            names += [str(value) for value in get_args(member)]
        else:
            names.append(_NAMES.get(member, "JSON"))
    *some, last = dict.fromkeys(names)
    return f"{', '.join(some)} or {last}" if some else last
