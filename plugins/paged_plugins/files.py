"""Files that users write and commands read; errors name them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core.core_schema import ErrorType

from paged_core.errors import SettingsError, did_you_mean, no_key
from paged_core.settings.documents import MAX_SIZE, parse_json, parse_yaml, read_text

_SHOWN = 5
"""Mistakes that an error names."""
_LONGEST = 300
"""Characters of one."""
_OF_PYDANTIC = {*get_args(ErrorType)} - {"value_error", "assertion_error", "missing"}
"""Types of mistakes whose message does not say what was given."""

_EXPONENT = re.compile(r"[+-]?\d+(\.\d*)?[eE][+-]?\d+")
_WANTED = {
    **dict.fromkeys(("list_type", "tuple_type"), "give a list"),
    **dict.fromkeys(("dict_type", "model_type", "dataclass_type"), "give a table"),
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "give a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "give a number"),
    **{"bool_type": "give true or false", "string_type": "give a text", "missing": "give it"},
}
"""Words for mistakes of these types."""


def read_file(path: Path, max_size: int = MAX_SIZE) -> str:
    """Return the text of a file.

    Raises:
        SettingsError: it cannot be read, or is larger than ``max_size`` bytes.
    """
    try:
        return read_text(path, max_size)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SettingsError(f"cannot read {path}: {reason}") from None


class Document:
    """The content of a text in YAML, or in JSON, and the lines of its parts."""

    def __init__(self, text: str, *, is_json: bool = False, max_size: int = MAX_SIZE) -> None:
        """Raise ValueError if the text cannot be parsed, or goes beyond a bound."""
        self._json = text if is_json else ""
        self._root: yaml.Node | None = None
        self.content: Any
        if is_json:
            self.content = parse_json(text)
        else:
            self.content, self._root = parse_yaml(text, max_size)

    def line(self, *path: object) -> int | None:
        """Return the line of the key, or of the item of a list, that ``path`` leads to.

        What is not written, such as the name of a kind, is passed over: it is then the line of what
        is around it. ``None``: nothing of the path is written, or its place is not known.
        """
        if self._json and self._root is None and len(self._json) <= MAX_SIZE:
            with suppress(ValueError):  # which YAML need not be
                _, self._root = parse_yaml(self._json)
        node, line = self._root, None
        for part in path:
            found: yaml.Node | None = None
            if isinstance(node, yaml.MappingNode):
                for key, value in node.value:
                    if key.value == str(part):
                        found, line = value, key.start_mark.line + 1
            elif isinstance(node, yaml.SequenceNode) and isinstance(part, int):
                found = node.value[part] if part < len(node.value) else None
                line = found.start_mark.line + 1 if found else line
            node = found or node
        return line


class PartError(ValueError):
    """A part of a document is wrong that was valid on its own; ``path`` leads to it."""

    def __init__(self, problem: str, *path: str | int) -> None:
        super().__init__(problem)
        self.path = path


def read_document(path: Path, max_size: int = MAX_SIZE) -> Document:
    """Return what a file of YAML holds, or of JSON if its name ends so.

    Raises:
        SettingsError: it cannot be read, is larger than ``max_size`` bytes, or cannot be parsed.
    """
    text = read_file(path, max_size)
    try:
        return Document(text, is_json=path.suffix == ".json", max_size=max_size)
    except ValueError as error:
        line = getattr(error, "line", None)
        where = f", line {line}," if line else ""
        raise SettingsError(f"{path}{where} cannot be parsed: {error}") from None


def mistakes(
    error: ValidationError,
    model: type[BaseModel],
    content: object,
    document: Document | None = None,
    above: Sequence[str | int] = (),
) -> str:
    """Return on one line what is wrong in ``content``, which was to become a ``model``.

    Args:
        document: where it was read, to name lines; ``above``: the path to it there.
    """
    items = error.errors(include_url=False)
    problems = []
    for item in items[:_SHOWN]:
        written = _written(content, item["loc"])
        if item["type"] == "missing":
            written.append(item["loc"][-1])
        key = ".".join(map(str, written))
        problem = item["msg"].removeprefix("Value error, ")
        problem = _WANTED.get(item["type"], problem).replace("Tuple should", "List should")
        if isinstance(cause := item.get("ctx", {}).get("error"), PartError):
            key, written = "", [*written, *cause.path]
        elif item["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
            key_given, known = str(item["loc"][-1]), _keys(model, item["loc"][:-1])
            problem = f"no such key{no_key(key_given, known) if known else ''}"
        elif item["type"] == "union_tag_invalid":
            tags = str(item["ctx"]["expected_tags"]).replace("'", "").split(", ")
            tag = str(item["ctx"]["tag"])
            problem = f"no kind is called {tag!r:.80}{_written_out(tag) or did_you_mean(tag, tags)}"
            written.append(tag)
        elif item["type"] in _OF_PYDANTIC:
            problem += _not(item["input"])
        problem = f"{key}: {problem}"[:_LONGEST] if key else problem[:_LONGEST]
        line = document.line(*above, *written) if document else None
        problems.append(f"{problem} (line {line})" if line else problem)
    more = f"; and {len(items) - _SHOWN} more" if len(items) > _SHOWN else ""
    return "; ".join(problems) + more


def _not(given: object) -> str:
    if isinstance(given, str | int | float | None):
        return f", not {given!r:.80}{_written_out(given)}"
    kinds = {"list": list | tuple, "table": Mapping}
    return next((f", not a {name}" for name, kind in kinds.items() if isinstance(given, kind)), "")


def _written_out(given: object) -> str:
    """Return what to append where a number is written as YAML 1.1 reads none; empty: it is not."""
    if not isinstance(given, str) or not _EXPONENT.fullmatch(given):
        return ""
    return ", which is a text in YAML; write the number out, or as in 1.0e+6"


def _written(content: object, path: Sequence[str | int]) -> list[str | int]:
    """Return of a path those parts that lead to something in ``content``: pydantic also names the
    kinds and the functions that it passes.
    """
    found: list[str | int] = []
    for part in path:
        if isinstance(content, str) and part == content:  # as in `arrivals: poisson`
            found.append(part)
        is_item = isinstance(content, list | tuple) and part in range(len(content))
        if is_item or (isinstance(content, Mapping) and part in content):
            found.append(part)
            content = content[part]  # type: ignore[index]
    return found


def _keys(model: type, path: Sequence[object]) -> set[str]:
    """Return the keys that may be at a path, as pydantic names the places in a ``model``."""
    models = {model}
    for part in path:
        named = {each for each in models if each.__name__ == part}
        annotations = [_fields(each)[part] for each in models if part in _fields(each)]
        below = {each for annotation in annotations for each in _models(annotation)}
        kinds = {each for each in models if _kind(each) == part}
        models = below or named or kinds or models
    return {name for each in models for name in _fields(each) if name != "kind"}


def _fields(model: type) -> Mapping[Any, Any]:
    """Return the annotations of the fields of a model, or of a dataclass, by name."""
    if issubclass(model, BaseModel):
        return {name: field.annotation for name, field in model.model_fields.items()}
    return get_type_hints(model)


def _models(annotation: Any) -> set[type]:
    """Return the models that a type is made of."""
    if isinstance(annotation, type) and (
        is_dataclass(annotation) or issubclass(annotation, BaseModel)
    ):
        return {annotation}
    return {each for part in get_args(annotation) for each in _models(part)}


def _kind(model: type) -> object:
    """Return the tag by which a union tells a model apart."""
    fields = model.model_fields if issubclass(model, BaseModel) else {}
    return fields["kind"].default if "kind" in fields else None
