"""Files that users write and commands read; errors name them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from paged_core.errors import SettingsError, did_you_mean
from paged_core.settings.documents import MAX_SIZE, parse_json, parse_yaml, read_text

_SHOWN = 5
"""Mistakes that an error names."""
_LONGEST = 300
"""Characters of one."""


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


def read_document(path: Path, max_size: int = MAX_SIZE) -> Any:
    """Return what a file of YAML holds, or of JSON if its name ends so.

    Raises:
        SettingsError: it cannot be read, is larger than ``max_size`` bytes, or cannot be parsed.
    """
    text = read_file(path, max_size)
    try:
        return parse_json(text) if path.suffix == ".json" else parse_yaml(text, max_size)[0]
    except ValueError as error:
        line = getattr(error, "line", None)
        where = f", line {line}," if line else ""
        raise SettingsError(f"{path}{where} cannot be parsed: {error}") from None


def mistakes(error: ValidationError, model: type[BaseModel]) -> str:
    """Return on one line what is wrong in what was to become a ``model``."""
    items = error.errors(include_url=False)
    problems = []
    for item in items[:_SHOWN]:
        key = ".".join(str(part) for part in item["loc"] if part != "function-after")
        problem = item["msg"].removeprefix("Value error, ")
        if item["type"] == "extra_forbidden" and len(item["loc"]) == 1:
            problem = f"no such key{did_you_mean(key, model.model_fields)}"
        problems.append(f"{key}: {problem}"[:_LONGEST] if key else problem[:_LONGEST])
    more = f"; and {len(items) - _SHOWN} more" if len(items) > _SHOWN else ""
    return "; ".join(problems) + more
