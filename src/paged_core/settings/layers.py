"""Layers of settings: where an entry comes from, and which layer wins, option by option."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from paged_core.errors import SettingsError
from paged_core.plugins.component import ComponentSettings, Slot
from paged_core.settings.documents import parse_json


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value is written."""

    layer: Literal["cli", "env", "yaml", "profile", "default", "python"]
    where: str
    """The option, the variable, the file, the profile, or whose default it is."""
    line: int | None = None

    def __str__(self) -> str:
        where = f"profile {self.where!r}" if self.layer == "profile" else self.where
        return where if self.line is None else f"{where}, line {self.line}"

    @property
    def suffix(self) -> str:
        """The end of a message about the value; empty for a keyword in Python."""
        return f" ({self})" if self.where else ""


class Text(str):
    """Text of a variable or of the command line, read by the type of the setting."""


@dataclass(frozen=True, slots=True)
class Entry:
    """The value of a setting, ``("num_blocks",)``, or of an option, ``("scheduler", "name")``."""

    path: tuple[str, ...]
    value: Any
    origin: Origin

    @property
    def key(self) -> str:
        """The path as people write it."""
        return ".".join(self.path)

    @property
    def is_null(self) -> bool:
        """Return whether the value is text for ``None``, where a setting allows that."""
        return isinstance(self.value, Text) and self.value.lower() in {"null", "none"}

    def decoded(self) -> Any:
        """Return the list or table that the value is as JSON; SettingsError if it is not JSON."""
        try:
            return parse_json(self.value)
        except ValueError as error:
            message = f"{self.key}: not valid JSON: {error}, in '{self.value:.80}'"
            if "double quotes" in str(error):
                message += """; write it as in '{"name": "lru"}'"""
            raise SettingsError(message + self.origin.suffix) from None


Layer = Sequence[Entry]
"""Values from one place: the environment, a file, a profile."""


Merged = Mapping[tuple[str, ...], Entry]
"""The entry that wins, by path."""


def merge(layers: Iterable[Layer], slots: Mapping[str, Slot]) -> Merged:
    """Return the entry that wins for every path; ``layers`` come lowest first.

    Tables of options are merged option by option. A layer that names another component than the
    layers below it drops their table for that slot.

    Raises:
        SettingsError: a layer gives two values for one setting.
    """
    merged: dict[tuple[str, ...], Entry] = {}
    for layer in layers:
        own = _by_option(layer, slots)
        replaced = {key for key, *_ in own if _replaces(key, own, merged, slots)}
        merged = {path: one for path, one in merged.items() if path[0] not in replaced} | own
    return merged


def _replaces(key: str, own: Merged, below: Merged, slots: Mapping[str, Slot]) -> bool:
    if (key,) in own or (key,) in below:
        return True
    chosen, before = own.get((key, "name")), below.get((key, "name"))
    if chosen is None or key not in slots:
        return False
    return bool(chosen.value != (before.value if before else slots[key].default))


def _by_option(layer: Layer, slots: Mapping[str, Slot]) -> dict[tuple[str, ...], Entry]:
    """Return an entry per option for every component; shorthand is an entry for its name."""
    found: dict[tuple[str, ...], Entry] = {}
    for entry in layer:
        slot = slots.get(entry.path[0])
        is_component = slot is not None and not slot.many and len(entry.path) == 1
        may_be_null = slot is not None and slot.default is None  # else "none" is a name
        for one in _options(entry, may_be_null) if is_component else (entry,):
            other = found.setdefault(one.path, one)
            if other is not one and other.value != one.value:
                raise SettingsError(
                    f"{one.key}: {other.origin} says {other.value!r:.80},"
                    f" {one.origin} says {one.value!r:.80}; keep one of them"
                )
    return found


def _options(entry: Entry, may_be_null: bool) -> Iterator[Entry]:
    value = None if entry.is_null and may_be_null else entry.value
    if isinstance(value, str) and value.startswith("{"):
        value = entry.decoded()
    if isinstance(value, str):
        yield replace(entry, path=(*entry.path, "name"))
    elif isinstance(value, (Mapping, ComponentSettings)) and (table := dict(value)):
        for option, own in table.items():
            yield replace(entry, path=(*entry.path, str(option)), value=own)
    else:
        yield replace(entry, value=value)
