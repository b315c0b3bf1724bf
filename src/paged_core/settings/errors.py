"""Messages about settings that are wrong: the key, the cause, the remedy, and where it is."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable
from importlib.resources import files
from typing import TYPE_CHECKING

from paged_core.errors import no_key
from paged_core.settings.layers import Entry, Merged, Text
from paged_core.settings.values import Choices, Known

if TYPE_CHECKING:
    from pydantic import ValidationError
    from pydantic_core import ErrorDetails


def spelled_here(word: str, spell: Callable[[str], str], *tables: str) -> str:
    """Return what to write, as ``spell`` spells settings, for an option of another engine."""
    known = tomllib.loads(files(__package__).joinpath("spellings.toml").read_text("utf-8"))
    key = word.lower().replace("-", "_")
    for table in tables or ("settings",):
        if key in known[table]:
            return "; " + re.sub(r"\{([\w.]+)\}", lambda name: spell(name[1]), known[table][key])
    return ""


_CONTAINERS = {"list_type", "tuple_type", "set_type", "frozen_set_type", "dict_type", "model_type"}
_NAMES = {"extra_forbidden", "no_component"}


def explain(error: ValidationError, known: Known, merged: Merged, notes: Iterable[str]) -> str:
    """Return a line per mistake, and ``notes`` if one is a name that is not known."""
    details = error.errors(include_url=False)
    lines = dict.fromkeys(_line(item, known, merged) for item in details)
    missing = any(item["type"] in _NAMES for item in details)
    return "\n".join((*lines, *(notes if missing else ())))


def _line(item: ErrorDetails, known: Known, merged: Merged) -> str:
    key, *rest = (str(part) for part in item["loc"])
    choices = known.choices.get(key, {})
    component = next(iter(choices)) if len(choices) == 1 else key
    place = 1 if choices and known.slots[key].many else 0  # the index of a list comes first
    if len(choices) > 1 and len(rest) > place:
        component = rest.pop(place)  # pydantic puts the name there if several may be chosen
    entry = _entry((key, *rest), merged)
    if item["type"] != "extra_forbidden":
        message = _message(item, entry)
    elif rest:
        message = _no_option(component, rest[-1], choices)
    else:
        message = f"no such setting{_nearest_setting(key, known)}"
    suffix = entry.origin.suffix if entry else ""
    return f"{'.'.join((key, *rest)):.200}: {message:.2000}{suffix}"


def _entry(path: tuple[str, ...], merged: Merged) -> Entry | None:
    """Return what gave the value at ``path``, or else what is nearest to it."""
    key = path[0]
    near = (path, path[:2], (key, "name"), (key,), *(one for one in merged if one[0] == key))
    return next((merged[one] for one in near if one in merged), None)


def _message(item: ErrorDetails, entry: Entry | None) -> str:
    if item["type"] == "value_error":
        return str(item["ctx"]["error"])
    message = item["msg"]
    if item["type"] in {"missing", "no_component", "component"}:
        return message
    message = f"{message[0].lower()}{message[1:]}, not {item['input']!r:.200}"
    message += spelled_here(f"{item['loc'][0]}_{item['input']}"[:80], str, "values")
    if item["type"] in _CONTAINERS and entry and isinstance(entry.value, Text):
        example = "" if item["type"] in {"dict_type", "model_type"} else ", as in '[]'"
        message += f"; write it as JSON{example}"
    return message.replace("valid tuple", "valid list")


def _no_option(component: str, option: str, choices: Choices) -> str:
    having = [name for name, options in choices.items() if option in options.model_fields]
    if having:
        return f"{component} has no such option; to set it, name {' or '.join(having)}"
    own = choices[component].model_fields if component in choices else ()
    return f"{component} has no such option{no_key(option, own)}"


def _nearest_setting(word: str, known: Known) -> str:
    """Prefer an option of that very name: its table is easily forgotten."""
    for slot, choices in known.choices.items():
        if any(word in options.model_fields for options in choices.values()):
            return f"; did you mean '{slot}.{word}'?"
    return spelled_here(word, str) or no_key(word, known.fields)
