"""The file that an observer writes."""

from __future__ import annotations

from pathlib import Path
from typing import TextIO

from paged_core.errors import SettingsError


def open_file(path: Path, key: str) -> TextIO:
    """Open a file to write, and make its folder if that is missing.

    Args:
        key: of the setting that names it.

    Raises:
        SettingsError: it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("w", encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"{key}: cannot write {path}: {error.strerror}") from None
