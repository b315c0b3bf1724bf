"""Files in YAML that describe a study, with errors of one line that name the key."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from paged_core.config.documents import DocumentError, parse_yaml, read_text
from paged_core.config.suggest import did_you_mean
from paged_core.errors import SettingsError

_SHOWN = 5
"""Mistakes that an error names."""


class Strict(BaseModel):
    """A part of such a file: nothing but what it declares, and frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


Model = TypeVar("Model", bound=BaseModel)


def parse(text: str, made: type[Model], path: Path) -> Model:
    """Return what the text of a file describes.

    Raises:
        SettingsError: it does not; the message names file, key and cause.
    """
    try:
        content, _ = parse_yaml(text)
    except DocumentError as error:
        where = f", line {error.line}" if error.line else ""
        raise SettingsError(f"{path}{where}: {error}") from None
    if not isinstance(content, dict):
        keys = ", ".join(made.model_fields)
        raise SettingsError(f"{path} must be a mapping with the keys {keys}")
    try:
        return made.model_validate(content)
    except ValidationError as error:
        raise SettingsError(f"{path}: {mistakes(error, made)}") from None


def read_file(path: Path) -> str:
    """Return the text of a file; SettingsError if it cannot be read."""
    try:
        return read_text(path)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SettingsError(f"cannot read {path}: {reason}") from None


def mistakes(error: ValidationError, made: type[BaseModel]) -> str:
    """Return what is wrong, on one line."""
    items = error.errors(include_url=False)
    problems = []
    for item in items[:_SHOWN]:
        key = ".".join(str(part) for part in item["loc"] if part != "function-after")
        problem = item["msg"].removeprefix("Value error, ")
        if item["type"] == "extra_forbidden" and len(item["loc"]) == 1:
            problem = f"no such key{did_you_mean(key, made.model_fields)}"
        problems.append(f"{key}: {problem}"[:300] if key else problem[:300])
    more = f"; and {len(items) - _SHOWN} more" if len(items) > _SHOWN else ""
    return "; ".join(problems) + more
