"""The elements of a JSON array in a file, one at a time: the file may be larger than memory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from paged_plugins.workloads.traces.trace_lines import TraceError, check_file

MAX_ELEMENT = 2**24
"""Characters of an element."""
_CHUNK = 2**18


def array_items(path: Path) -> Iterator[Any]:
    """Yield the elements of the array that a file holds.

    Raises:
        TraceError: the file cannot be read, holds no array, or an element is broken or too long.
    """
    check_file(path)
    try:
        with path.open(encoding="utf-8-sig") as file:
            yield from _Elements(path, file)
    except OSError as error:
        raise TraceError(path, None, f"it cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise TraceError(path, None, "it is not text in UTF-8") from None


class _Elements:
    """Decodes elements from a window of the file."""

    def __init__(self, path: Path, file: TextIO) -> None:
        self._path = path
        self._file = file
        self._text = ""
        self._decode = json.JSONDecoder().raw_decode

    def __iter__(self) -> Iterator[Any]:
        if self._next() != "[":
            raise TraceError(self._path, None, "it is no JSON array")
        self._text = self._text[1:]
        number = 0
        while self._next() != "]":
            if number:
                if self._next() != ",":
                    raise self._broken(number, "a comma is missing before it")
                self._text = self._text[1:]
                self._next()
            yield self._element(number)
            number += 1

    def _next(self) -> str:
        """Return the next character that is no space, without taking it; empty: the file ends."""
        self._text = self._text.lstrip()
        while not self._text and (more := self._file.read(_CHUNK)):
            self._text = more.lstrip()
        return self._text[:1]

    def _element(self, number: int) -> Any:
        while True:
            try:
                value, end = self._decode(self._text)
            except json.JSONDecodeError as error:
                problem = f"it is not JSON: {error.msg}"
            except (RecursionError, ValueError):
                raise self._broken(
                    number, "it is nested too deeply, or a number too long"
                ) from None
            else:
                self._text = self._text[end:]
                return value
            if len(self._text) > MAX_ELEMENT:
                raise self._broken(number, f"{problem}, or longer than {MAX_ELEMENT:,} characters")
            more = self._file.read(max(_CHUNK, len(self._text)))
            if not more:
                raise self._broken(number, problem)
            self._text += more

    def _broken(self, number: int, problem: str) -> TraceError:
        return TraceError(self._path, None, f"entry {number}: {problem}")
