"""The form that an output must have, as plain data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from paged_core.errors import RequestError
from paged_core.field_rules import Rule, apply_rules, flag, instance, refusal, shown, text, texts

_MOST = 1 << 20
"""Characters of a schema, a grammar or a regular expression at most."""
_FORMS = ("json", "regex", "choice", "grammar", "json_object")


def _schema(name: str, value: Any) -> str | None:
    """Accept a JSON schema, as text or as Python has it, and return it as text."""
    if value is None:
        return None
    try:
        schema = json.loads(value) if isinstance(value, str) else value
        written = json.dumps(schema, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise RequestError(f"{name} is no JSON schema ({error}): {shown(value)}") from error
    if not isinstance(schema, Mapping | bool):
        raise refusal(name, "be a JSON schema, which is an object", value)
    return _bounded(name, written)


def _bounded(name: str, value: Any) -> str | None:
    """Accept text of a length that can be compiled."""
    if value is None:
        return None
    written: str = text(name, value)
    if not written:
        raise RequestError(f"{name} must not be empty")
    if len(written) > _MOST:
        raise RequestError(f"{name} has {len(written)} characters; {_MOST} are read at most")
    return written


def _choices(name: str, value: Any) -> tuple[str, ...] | None:
    if value is None:
        return None
    if isinstance(value, str) or not (listed := texts(name, value)):
        raise refusal(name, "be a list of texts to choose from", value)
    _bounded(name, "".join(listed))
    return tuple(dict.fromkeys(listed))


_RULES: Mapping[str, Rule] = {
    "json": _schema,
    "regex": _bounded,
    "choice": _choices,
    "grammar": _bounded,
    "json_object": flag,
    "disable_any_whitespace": flag,
    "after": _bounded,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutputs:
    """The form of an output: one of the first five fields; the names are vLLM's.

    Equal ones are hashed alike, and are compiled once.

    Raises:
        RequestError: none of the forms is given, or several, or one is no such thing.
    """

    json: str | None = None
    """A JSON schema; given as text or as a mapping, kept as text."""
    regex: str | None = None
    """A regular expression that the whole output matches."""
    choice: tuple[str, ...] | None = None
    """The output is one of these."""
    grammar: str | None = None
    """A context-free grammar: Lark's notation, or GBNF; what is read depends on the component."""
    json_object: bool = False
    """Any JSON object."""
    disable_any_whitespace: bool = False
    """No white space between the parts of JSON, however the model would like to lay it out."""
    after: str | None = None
    """The form begins behind this text, such as ``</think>``; before it anything but the end of
    the sequence is allowed. ``None``: it is that of the whole output."""

    def __post_init__(self) -> None:
        apply_rules(self, _RULES)
        given = [name for name in _FORMS if getattr(self, name) not in (None, False)]
        if len(given) != 1:
            found = " and ".join(given) or "none"
            raise RequestError(
                f"structured_outputs takes one of {', '.join(_FORMS)}, and has {found}"
            )

    @property
    def schema(self) -> str | None:
        """The JSON schema of ``json`` or ``json_object``; ``None``: it is another form."""
        return '{"type":"object"}' if self.json_object else self.json


_KNOWN = frozenset(field.name for field in fields(StructuredOutputs))
_is_mapping = instance(Mapping, "StructuredOutputs(...), or a mapping of its fields")


def structured_outputs(name: str, value: Any) -> StructuredOutputs | None:
    """Accept a form, or a mapping of its fields."""
    if value is None or isinstance(value, StructuredOutputs):
        return value
    given = dict(_is_mapping(name, value))
    unknown = [shown(key) for key in given if key not in _KNOWN]
    if unknown:
        raise RequestError(
            f"{name} has no field {', '.join(unknown)}; it has {', '.join(sorted(_KNOWN))}"
        )
    return StructuredOutputs(**given)
