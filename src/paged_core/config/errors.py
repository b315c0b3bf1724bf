"""What was wrong with settings, said for people: the key, the cause, the remedy, and where."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from paged_core.config.layers import Entry, Text
from paged_core.config.suggest import did_you_mean

if TYPE_CHECKING:
    from pydantic import ValidationError
    from pydantic_core import ErrorDetails

    from paged_core.registry import Registry

_CONTAINERS = {"list_type", "tuple_type", "set_type", "frozen_set_type", "dict_type", "model_type"}
_NAMES = {"extra_forbidden", "no_component"}


def explain(
    error: ValidationError,
    registry: Registry,
    fields: Mapping[str, Any],
    merged: Mapping[tuple[str, ...], Entry],
) -> str:
    """Return a line per mistake, and one per broken plugin if something could not be found."""
    details = error.errors(include_url=False)
    lines = dict.fromkeys(_line(item, registry, fields, merged) for item in details)
    notes = registry.notes if any(item["type"] in _NAMES for item in details) else ()
    return "\n".join((*lines, *notes))


def _line(
    item: ErrorDetails,
    registry: Registry,
    fields: Mapping[str, Any],
    merged: Mapping[tuple[str, ...], Entry],
) -> str:
    key, *rest = (str(part) for part in item["loc"])
    component = None
    if slot := registry.slots.get(key):
        components = registry.of(key)
        place = 1 if slot.many else 0  # a list has the index before the component's name
        if len(rest) > place + 1 and rest[place] in {*components, "auto"}:  # a lone one has none
            component = components.get(rest.pop(place))
        elif len(components) == 1:
            component = next(iter(components.values()))
        elif not slot.many:
            chosen = merged.get((key, "name"))
            component = components.get(str(chosen.value if chosen else slot.default))
    entry = merged.get((key, *rest)) or merged.get((key, *rest[:1])) or merged.get((key, "name"))
    entry = entry or merged.get((key,))
    message = _message(item, entry)
    if item["type"] == "extra_forbidden":
        if rest:
            known = component.settings.model_fields if component else ()
            owner = component.name if component else key
            message = f"{owner} has no such option{did_you_mean(rest[-1], known)}"
            having = [
                other.name
                for other in (registry.of(key) if slot else {}).values()
                if rest[-1] in other.settings.model_fields
            ]
            if having:
                message = f"{owner} has no such option; to set it, name {' or '.join(having)}"
        else:
            message = f"no such setting{_suggest_setting(key, registry, fields)}"
    where = f" ({entry.source})" if entry and str(entry.source) else ""
    return f"{'.'.join((key, *rest))}: {message}{where}"


def _message(item: ErrorDetails, entry: Entry | None) -> str:
    if item["type"] == "value_error":
        return str(item["ctx"]["error"])
    message = item["msg"]
    if item["type"] in {"missing", "no_component", "component"}:
        return message
    message = f"{message[0].lower()}{message[1:]}, not {item['input']!r}"
    if item["type"] in _CONTAINERS and entry and isinstance(entry.value, Text):
        message += "; write it as JSON"
    return message.replace("valid tuple", "valid list")


def _suggest_setting(word: str, registry: Registry, fields: Mapping[str, Any]) -> str:
    """Prefer the slot whose component has an option of that very name: people forget the table."""
    for place in _options(registry):
        if place.endswith(f".{word}"):
            return f"; did you mean {place!r}?"
    return did_you_mean(word, fields)


def _options(registry: Registry) -> Iterator[str]:
    for slot in registry.slots:
        for component in registry.of(slot).values():
            yield from (f"{slot}.{option}" for option in component.settings.model_fields)
