"""Writing a report to a file."""

from __future__ import annotations

from pathlib import Path

from paged_core.errors import SettingsError


def write_text(path: Path, text: str) -> None:
    """Write a file; SettingsError, with the cause, if that fails."""
    try:
        path.write_text(text, "utf-8", newline="\n")
    except OSError as error:
        raise SettingsError(f"{path} cannot be written: {error.strerror}") from None
