"""Files of requests, read line by line within bounds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from stat import S_ISREG
from typing import Any

from paged_core.config.documents import parse_json
from paged_core.errors import SettingsError

MAX_LINE = 2**22
"""Bytes of a line."""


class TraceError(SettingsError):
    """A file of requests is broken; the message names the file and the line.

    It can be pickled: a run may be in another process.
    """

    def __init__(self, path: Path, line: int | None, problem: str) -> None:
        super().__init__(path, line, problem)

    def __str__(self) -> str:
        path, line, problem = self.args
        return f"{path}: {problem}" if line is None else f"{path}, line {line}: {problem}"


def check_file(path: Path) -> None:
    """Refuse what is no file, or cannot be read again and again.

    Raises:
        TraceError: it is a folder, a pipe, or not there.
    """
    try:
        if not S_ISREG(path.stat().st_mode):
            raise TraceError(path, None, "it is no ordinary file; write it to one")
    except OSError as error:
        raise TraceError(path, None, f"it cannot be read: {error.strerror}") from None


def text_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines that are not blank, each with its number from 1.

    Raises:
        TraceError: the file cannot be read, or a line is too long or no text.
    """
    check_file(path)
    try:
        with path.open("rb") as file:
            number = 0
            while line := file.readline(MAX_LINE + 1):
                number += 1
                if len(line) > MAX_LINE:
                    raise TraceError(path, number, f"it is longer than {MAX_LINE:,} bytes")
                if text := _decoded(path, number, line):
                    yield number, text
    except OSError as error:
        raise TraceError(path, None, f"it cannot be read: {error.strerror}") from None


def json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the objects of a JSONL file, each with the number of its line.

    Raises:
        TraceError: as :func:`text_lines`, or a line is no JSON object.
    """
    for number, text in text_lines(path):
        try:
            value = parse_json(text)
        except ValueError as error:
            raise TraceError(path, number, f"it is not JSON: {error}") from None
        if not isinstance(value, dict):
            raise TraceError(path, number, "it is no JSON object")
        yield number, value


def _decoded(path: Path, number: int, line: bytes) -> str:
    try:
        return line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
    except UnicodeDecodeError:
        raise TraceError(path, number, "it is not text in UTF-8") from None
