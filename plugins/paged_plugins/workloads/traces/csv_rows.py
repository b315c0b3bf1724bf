"""Rows of a CSV file with a header, read within bounds."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from paged_plugins.workloads.traces.request_lines import MAX_TOKENS
from paged_plugins.workloads.traces.trace_lines import TraceError, text_lines


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
        TraceError: the file cannot be read, lacks a column, or a row lacks a field.
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
        elif len(fields) < num_fields:
            raise TraceError(path, number, "the row has fewer fields than the header")
        else:
            found = ["" if place is None else fields[place].strip() for place in places]
            yield CsvRow(path, number, found)
