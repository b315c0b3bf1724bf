"""Files that users write: reading them, and what is wrong in them."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ValidationError

from paged_core.config.documents import MAX_SIZE, read_text
from paged_core.config.suggest import did_you_mean
from paged_core.errors import SettingsError

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
