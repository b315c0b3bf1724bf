"""The report as Markdown: the answer, the differences, and what was run."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from pathlib import Path

from paged_plugins.files import write_text
from paged_plugins.lab.measures.measure import MEASURES
from paged_plugins.lab.report.contents import Contents, contents
from paged_plugins.lab.report.difference_table import Cell, DifferenceTable
from paged_plugins.lab.report.pictures.svg import printable
from paged_plugins.lab.results.results import Results

_SPECIAL = re.compile(r"([\\`*<>#|~$&]|(?<!\w)_|_(?!\w)|\](?=[(\[:]))")


def write_markdown(results: Results, path: Path, *, measures: Collection[str] = MEASURES) -> None:
    """Write the report of ``results``, without plots; SettingsError if that fails."""
    write_text(path, markdown(results, measures))


def markdown(results: Results, measures: Collection[str] = MEASURES) -> str:
    """Return the report of ``results`` as Markdown, without plots."""
    return printable("\n".join(_lines(contents(results, measures))) + "\n")


def _lines(told: Contents) -> Iterator[str]:
    yield from (f"# {escaped(told.title)}", "", escaped(told.scope), "")
    for sentence in told.answers:
        yield f"- {escaped(sentence)}"
    yield from ("", "## How to read this", "")
    for note in told.notes:
        yield f"- {escaped(note)}"
    if told.full_tables:
        yield from ("", "## Differences", "")
        for sentence in told.arms:
            yield f"- {escaped(sentence)}"
        for table in told.full_tables:
            yield from ("", *_table(table))
    yield from ("", "## What was run", "", "| arm | settings that it changes |", "| --- | --- |")
    for label, changes in told.origin.arms:
        yield f"| {escaped(label)} | {escaped(changes.replace(chr(10), ', ')) or 'none'} |"
    yield ""
    for key, value in told.origin.facts:
        yield f"- {escaped(key)}: {escaped(value)}"
    for key, value in told.origin.blocks:
        yield from ("", f"### {escaped(key)}", "", *_indented(value))


def _table(table: DifferenceTable) -> Iterator[str]:
    if table.title:
        yield from (f"### {escaped(table.title)}", "")
    if table.topics:
        yield from _rows(table)
    if table.equal:
        equal = "; ".join(f"{row.title} {row.base}" for row in table.equal)
        yield from (*([""] if table.topics else []), f"Equal in all arms: {escaped(equal)}.")


def _rows(table: DifferenceTable) -> Iterator[str]:
    labels = [escaped(label) for label in table.family.labels]
    yield f"| measure | {' | '.join(labels)} |"
    yield "| --- |" + " ---: |" * len(labels)
    for topic in table.topics:
        for row in topic.rows:
            cells = ["" if cell is None else _cell(cell) for cell in row.cells]
            yield f"| {' | '.join([escaped(row.title), row.base, *cells])} |"


def _cell(cell: Cell) -> str:
    change = " ".join(filter(None, (cell.change, escaped(cell.interval))))
    return f"**{change} {cell.verdict}**" if cell.verdict else change


def _indented(block: str) -> Iterator[str]:
    """Yield a block of code: indented, as no fence is safe from its content."""
    for line in block.splitlines():
        yield f"    {line}"


def escaped(text: str) -> str:
    """Return text that Markdown shows as it is, in one line."""
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))
