"""Files that commands and observers write, and errors that name them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TextIO

from paged_core.errors import SettingsError


def unwritable(path: Path, error: OSError, key: str = "") -> SettingsError:
    """Return the error to raise where a file cannot be written.

    Args:
        key: of the setting that names it, if one does.
    """
    where = f"{key}: " if key else ""
    why = error.strerror or error
    return SettingsError(f"{where}{path} cannot be written: {why}; name another file")


def open_file(path: Path, key: str) -> TextIO:
    """Open the file of an observer, and make its folder if that is missing.

    Args:
        key: of the setting that names it.

    Raises:
        SettingsError: it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("w", encoding="utf-8")
    except OSError as error:
        raise unwritable(path, error, key) from None


def write_text(path: Path, text: str) -> None:
    """Write a file; SettingsError if that fails."""
    try:
        path.write_text(text, "utf-8", newline="\n")
    except OSError as error:
        raise unwritable(path, error) from None


def write_json(path: Path, value: Any) -> None:
    """Write one document of JSON; SettingsError if that fails."""
    write_text(path, json.dumps(value, indent=2) + "\n")
