"""The report as one HTML file that needs nothing else, and as Markdown."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from importlib.resources import files
from itertools import chain
from pathlib import Path

from markupsafe import Markup, escape

from paged_plugins.lab.measures import MEASURES, value_text
from paged_plugins.lab.report.contents import Contents, DifferenceTable, contents
from paged_plugins.lab.report.drawing import printable
from paged_plugins.lab.report.galleries import galleries
from paged_plugins.lab.results.results import Results
from paged_plugins.lab.statistics.comparison import Comparison
from paged_plugins.lab.statistics.differences import Difference
from paged_plugins.written_files import write_text

_BREAKS = re.compile(r"=(?=\w{9})|(?<=\w{3})_(?=\w{3})")
_PACKAGE = "paged_plugins.lab.report"
_MOST_DIFFERENCES = 5_000
"""Differences in all tables of every measure, at most: the file stays small."""


def write_html(
    results: Results,
    path: Path,
    *,
    measures: Collection[str] = MEASURES,
) -> None:
    """Write the report of ``results``.

    Args:
        measures: names of those that are compared; more of them make wider intervals.

    Raises:
        SettingsError: matplotlib is not installed.
        WriteFailed: the file cannot be written.
    """
    write_text(path, html(Comparison.of(results, measures)))


def html(told: Comparison) -> str:
    """Return the report of a comparison as a page; equal results make equal pages.

    Raises:
        SettingsError: matplotlib is not installed.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader(_PACKAGE, ""),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters |= {"breakable": _breakable, "interval": _interval, "value": value_text}
    found = contents(told)
    page = environment.get_template("page.html").render(
        contents=found,
        measures=MEASURES,
        has_full_tables=len(found.found) <= _MOST_DIFFERENCES,
        galleries=galleries(told.results, found),
        css=files(_PACKAGE).joinpath("page.css").read_text("utf-8"),
    )
    return printable(page)


def _interval(difference: Difference) -> str:
    return difference.interval_text if difference.has_interval else ""


def _breakable(label: str) -> Markup:
    """Return a label that may be broken before a long value, and within long names."""
    return Markup(_BREAKS.sub(r"\g<0><wbr>", str(escape(label))))


_SPECIAL = re.compile(r"([\\`*<>#|~$&]|(?<!\w)_|_(?!\w)|\](?=[(\[:]))")


def write_markdown(results: Results, path: Path, *, measures: Collection[str] = MEASURES) -> None:
    """Write the report of ``results``, without plots; WriteFailed if that fails."""
    write_text(path, markdown(Comparison.of(results, measures)))


def markdown(told: Comparison) -> str:
    """Return the report of a comparison as Markdown, without plots."""
    return printable("\n".join(_lines(contents(told))) + "\n")


def _lines(told: Contents) -> Iterator[str]:
    yield from (f"# {escaped(told.title)}", "", escaped(told.scope), "")
    for limit in told.limits:
        yield f"- {escaped(limit)}"
    yield from _decided(told.decided)
    yield from ("", "## How to read this", "")
    for note in told.notes:
        yield f"- {escaped(note)}"
    if told.full_tables:
        yield from ("", "## Differences", "")
        for table in told.full_tables:
            yield from ("", *_table(table))
    yield from ("", "## What was run", "", "| arm | settings that it changes |", "| --- | --- |")
    for label, changes in told.settings:
        yield f"| {escaped(label)} | {escaped(changes.replace(chr(10), ', ')) or 'none'} |"
    yield ""
    for key, value in told.facts:
        yield f"- {escaped(key)}: {escaped(value)}"
    for key, value in told.blocks:
        yield from ("", f"### {escaped(key)}", "")
        yield from (f"    {line}" for line in value.splitlines())  # no fence is safe from it


def _decided(some: Sequence[Difference]) -> Iterator[str]:
    """Yield a table of the differences that are claimed."""
    if some:
        yield from ("", "| arm | compared with | workload | measure | change | |")
        yield "| --- | --- | --- | --- | ---: | --- |"
    for each in some:
        words = (each.arm, each.compared_with, each.workload, MEASURES[each.measure].title)
        change = f"{each.change_text} {_interval(each)}"
        yield f"| {' | '.join(map(escaped, (*words, change, each.told)))} |"


def _table(table: DifferenceTable) -> Iterator[str]:
    if table.title:
        yield from (f"### {escaped(table.title)}", "")
    if table.topics:
        labels = [escaped(label) for label in table.family.labels]
        yield f"| measure | {' | '.join(labels)} |"
        yield "| --- |" + " ---: |" * len(labels)
    for row in chain(*table.topics.values()):
        cells = [cell if isinstance(cell, str) else _cell(cell) for cell in row.cells]
        yield f"| {' | '.join([escaped(row.measure.title), row.base, *cells])} |"
    if table.equal:
        yield from (*([""] if table.topics else []), escaped(f"{table.equal_text}."))


def _cell(found: Difference) -> str:
    change = " ".join(filter(None, (found.change_text, escaped(_interval(found)))))
    return f"**{change} {found.told}**" if found.moved else change


def escaped(text: str) -> str:
    """Return text that Markdown shows as it is, in one line."""
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))
