"""Merged settings as nested values, with text read by the type of the setting it is for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BeforeValidator
from pydantic.fields import FieldInfo

from paged_core.errors import SettingsError
from paged_core.plugins.component import ComponentSettings, Slot
from paged_core.settings.layers import Entry, Merged, Text

_PLAIN = {int, float, bool, str, NoneType}


def members(kind: Any) -> list[Any]:
    """Return the types that a value may have, looking through unions and ``Annotated``."""
    if get_origin(kind) is Annotated:
        return members(get_args(kind)[0])
    if get_origin(kind) in {Union, UnionType}:
        return [member for part in get_args(kind) for member in members(part)]
    return [kind]


def is_container(kind: Any) -> bool:
    """Whether a value of this type is written as a list or a table."""
    return kind not in _PLAIN and get_origin(kind) is not Literal and kind is not Any


_SIZE = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*(?:%|([KMGT])(i?)B?|B)?", re.IGNORECASE)
_POWERS = {"K": 1, "M": 2, "G": 3, "T": 4}


def memory_size(value: object) -> object:
    """Read ``"2GiB"``, ``"500 MB"``, ``"80%"`` or a number; return other types as they are.

    Up to 1 it is a fraction, a float; above, bytes, an int.

    Raises:
        ValueError: it is malformed, not more than 0, or 2**63 bytes or more.
    """
    number = _number(value) if isinstance(value, str) else value
    if isinstance(number, bool) or not isinstance(number, (int, float)):
        return value
    if not number > 0:
        raise ValueError("memory must be more than 0")
    if number >= 2**63:
        raise ValueError("there is no memory of 2**63 bytes")
    if number <= 1:
        return float(number)
    if number != int(number):
        raise ValueError("a fraction of the memory is at most 1; above that, give whole bytes")
    return int(number)


def _number(text: str) -> float:
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ValueError("give bytes, such as 2GiB or 500MB, or a fraction, such as 0.5")
    number, unit, binary = float(found[1]), found[2], found[3]
    if unit:
        return float(number * (1024 if binary else 1000) ** _POWERS[unit.upper()] // 1)
    return number / 100 if "%" in text else number


MemorySize = Annotated[
    int | float, BeforeValidator(memory_size, json_schema_input_type=int | float | str)
]
"""Bytes (an int), or a fraction of the free memory (a float of at most 1)."""


Choices = Mapping[str, type[ComponentSettings]]
"""Options of each component that may be chosen for a slot, by name."""


@dataclass(frozen=True, slots=True)
class Known:
    """The settings that exist with the plugins that are installed, by key."""

    fields: Mapping[str, FieldInfo]
    slots: Mapping[str, Slot]
    choices: Mapping[str, Choices]

    def type_of(self, path: tuple[str, ...], merged: Merged) -> Any:
        """Return the type of a setting, or of an option of the chosen component."""
        key, *option = path
        field = self.fields.get(key)
        if option and key in self.slots:
            chosen = merged.get((key, "name"))
            name = chosen.value if chosen else self.slots[key].default
            options = self.choices[key].get(name) if isinstance(name, str) else None
            field = options.model_fields.get(option[0]) if options else None
        return field.annotation if field else None


def nested_values(merged: Merged, known: Known) -> dict[str, Any]:
    """Return what pydantic checks: values by key, and a table of options per component.

    Raises:
        SettingsError: a setting that has no options is given some, text is not JSON, or a number
            is a bool.
    """
    values: dict[str, Any] = {}
    for path in sorted(merged, key=len):
        (key, *option), entry = path, merged[path]
        table = values.setdefault(key, {}) if option else values
        if not isinstance(table, dict):
            raise SettingsError(f"{entry.key}: {key!r} is not a table{entry.origin.suffix}")
        table[path[-1]] = _read(entry, members(known.type_of(path, merged)))
    return values


def _read(entry: Entry, types: list[Any]) -> Any:
    """Return the value; text is read only as far as pydantic does not read it."""
    value = entry.value
    if isinstance(value, bool) and bool not in types and {int, float} & {*types}:
        word = str(value).lower()
        raise SettingsError(f"{entry.key}: give a number, not {word}{entry.origin.suffix}")
    if entry.is_null and NoneType in types:
        return None
    if isinstance(value, str) and value[:1] in {"[", "{"} and any(map(is_container, types)):
        return value if str in types and not isinstance(value, Text) else entry.decoded()
    if not isinstance(value, Text):
        return value
    literals = (each for kind in types if get_origin(kind) is Literal for each in get_args(kind))
    return next((each for each in literals if str(each) == value), str(value))
