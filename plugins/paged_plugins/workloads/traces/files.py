"""Files of requests, read within bounds: lines, rows of CSV, elements of a JSON array."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISREG
from typing import Any, TextIO, TypeVar

from pydantic import BaseModel, ValidationError

from paged_core.errors import SettingsError
from paged_core.settings.documents import parse_json
from paged_plugins.files import mistakes

MAX_LINE = 2**22
"""Bytes of a line."""
MAX_TOKENS = 10_000_000
"""Largest prompt, and answer; more is taken for a typing error."""
MAX_ELEMENT = 2**24
"""Characters of an element."""
NO_REQUEST = "there is no request in it that reads and generates a token"
"""Problem of a file that is read to its end in vain."""
_CHUNK = 2**18
CHARACTERS_PER_TOKEN = 4
"""Length of a token of English, roughly, with vocabularies of 30,000 to 200,000 tokens."""


class TraceError(SettingsError):
    """A file is broken; the message names the file and the line.

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
        seen = "" if path.is_absolute() else f", seen from the working directory, {Path.cwd()}"
        raise TraceError(path, None, f"it cannot be read: {error.strerror}{seen}") from None


def text_lines(path: Path, most: int | None = None) -> Iterator[tuple[int, str]]:
    """Yield the lines that are not blank, each with its number from 1.

    Args:
        most: bytes of a line; ``None``: ``MAX_LINE``.

    Raises:
        TraceError: the file cannot be read, or a line is too long or no text.
    """
    most = most or MAX_LINE
    try:
        with path.open("rb") as file:
            number = 0
            while line := file.readline(most + 1):
                number += 1
                if len(line) > most:
                    raise TraceError(path, number, f"it is longer than {most:,} bytes")
                if text := _decoded(path, number, line):
                    yield number, text
    except OSError as error:
        raise TraceError(path, None, f"it cannot be read: {error.strerror}") from None


def json_lines(path: Path, most: int | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the objects of a JSONL file, each with the number of its line; as :func:`text_lines`.

    Raises:
        TraceError: as there, or a line is no JSON object.
    """
    for number, text in text_lines(path, most):
        try:
            value = parse_json(text)
        except ValueError as error:
            raise TraceError(path, number, f"it is not JSON: {error}") from None
        if not isinstance(value, dict):
            raise TraceError(path, number, "it is no JSON object")
        yield number, value


def json_objects(path: Path, most: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield as :func:`json_lines` does; of a file that is one object in several lines, as tools
    write it that indent, that object.

    Args:
        most: bytes of a line, and of such a file.
    """
    try:
        yield from json_lines(path, most)
    except TraceError as broken:
        if broken.args[1] != 1 or path.stat().st_size > most:
            raise
        try:
            value = parse_json(path.read_text("utf-8-sig"))
        except ValueError:  # no text in UTF-8, or no JSON
            raise broken from None
        if not isinstance(value, dict):
            raise
        yield 1, value


def checked(path: Path, number: int, values: object, kind: type[Checked]) -> Checked:
    """Return the object of a line as a ``kind``.

    Raises:
        TraceError: it is none; the message names the keys that are wrong.
    """
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise TraceError(path, number, mistakes(error, kind, values)) from None


def _decoded(path: Path, number: int, line: bytes) -> str:
    try:
        return line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
    except UnicodeDecodeError:
        raise TraceError(path, number, "it is not text in UTF-8") from None


@dataclass(frozen=True, slots=True)
class CsvRow:
    """One row: its fields by the names of the columns, in the order that was asked for."""

    path: Path
    line: int
    fields: Sequence[str]

    def tokens(self, place: int) -> int:
        """Return a field that counts tokens; it may be 0.

        Raises:
            TraceError: it is no such number.
        """
        text = self.fields[place]
        number = (
            int(text) if text.isascii() and text.isdigit() and len(text) < 12 else MAX_TOKENS + 1
        )
        if number > MAX_TOKENS:
            raise self.error(f"{text!r:.40} is no number of tokens up to {MAX_TOKENS:,}")
        return number

    def error(self, problem: str) -> TraceError:
        """Return an error that names the file and the line."""
        return TraceError(self.path, self.line, problem)


def csv_rows(path: Path, columns: Sequence[str], optional: Sequence[str] = ()) -> Iterator[CsvRow]:
    """Yield the rows of a file, with the fields of ``columns``, then those of ``optional``.

    Args:
        optional: columns that a file may lack; its fields are then empty.

    Raises:
        TraceError: the file cannot be read, lacks a column, or a row has fewer fields than it
            has columns, or more.
    """
    places: list[int | None] | None = None
    num_fields = 0
    for number, text in text_lines(path):
        try:
            fields = next(csv.reader([text]))
        except csv.Error as error:
            raise TraceError(path, number, f"it is not CSV: {error}") from None
        if places is None:
            header = {field.strip().lower(): place for place, field in enumerate(fields)}
            places = [header.get(column.lower()) for column in (*columns, *optional)]
            if None in places[: len(columns)]:
                missing = columns[places.index(None)]
                raise TraceError(path, number, f"the header has no column {missing!r}")
            num_fields = len(fields)
        elif len(fields) != num_fields:
            than = "fewer" if len(fields) < num_fields else "more"
            raise TraceError(path, number, f"the row has {than} fields than the header")
        else:
            found = ["" if place is None else fields[place].strip() for place in places]
            yield CsvRow(path, number, found)


class ArrivalOrder:
    """Checks that the rows of a file arrive one after the other.

    Args:
        key: the name that their time has in the file.
    """

    def __init__(self, path: Path, key: str) -> None:
        self._path = path
        self._key = key
        self._last = 0.0

    def checked(self, line: int, at: float) -> float:
        """Return the arrival of a row, in seconds from the start.

        Raises:
            TraceError: the row above it arrives later.
        """
        if at < self._last:
            problem = f"it arrives before the request above it; sort them by `{self._key}`"
            raise TraceError(self._path, line, problem)
        self._last = at
        return at


def array_items(path: Path) -> Iterator[Any]:
    """Yield the elements of the array that a file holds.

    Raises:
        TraceError: the file cannot be read, holds no array, or an element is broken or too long.
    """
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


Checked = TypeVar("Checked", bound=BaseModel)
TokenCount = Callable[[str], int]
"""Counts with a model's tokenizer, or estimates."""


def estimated_tokens(text: str) -> int:
    """Return the tokens of a text without a tokenizer: its characters by four, rounded up."""
    return -(-len(text) // CHARACTERS_PER_TOKEN)
