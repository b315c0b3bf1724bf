"""Merged settings as nested values, with text read by the type of the setting it is for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from paged_core.errors import SettingsError
from paged_core.plugins.component import ComponentSettings, Slot
from paged_core.settings.layers import Entry, Merged, Text
from paged_core.settings.types import is_container, members

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
