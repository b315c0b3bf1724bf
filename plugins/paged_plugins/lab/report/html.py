"""The report as one HTML file that needs nothing else: no network, no script."""

from __future__ import annotations

import re
from collections.abc import Collection
from importlib.resources import files
from pathlib import Path

from markupsafe import Markup, escape

from paged_plugins.block_history import BlockHistory
from paged_plugins.files import write_text
from paged_plugins.lab.measures.measure import MEASURES
from paged_plugins.lab.report.contents import contents
from paged_plugins.lab.report.pictures.galleries import galleries
from paged_plugins.lab.report.pictures.svg import printable
from paged_plugins.lab.results.results import Results

_BREAKS = re.compile(r"=(?=\w{9})|(?<=\w{3})_(?=\w{3})")
_PACKAGE = "paged_plugins.lab.report"
_MOST_DIFFERENCES = 5_000
"""Of all tables of every measure: the file stays small."""


def write_html(
    results: Results,
    path: Path,
    *,
    measures: Collection[str] = MEASURES,
    blocks: BlockHistory | None = None,
) -> None:
    """Write the report of ``results``; equal results make equal files.

    Args:
        measures: names of those that are compared; more of them make wider intervals.
        blocks: who held which block in one run, to be drawn too.

    Raises:
        SettingsError: matplotlib is not installed, or the file cannot be written.
    """
    write_text(path, html(results, measures, blocks))


def html(
    results: Results, measures: Collection[str] = MEASURES, blocks: BlockHistory | None = None
) -> str:
    """Return the report of ``results`` as a page; SettingsError if matplotlib is not installed."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader(_PACKAGE, ""),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters["breakable"] = _breakable
    told = contents(results, measures)
    page = environment.get_template("page.html").render(
        contents=told,
        has_full_tables=len(told.found) <= _MOST_DIFFERENCES,
        galleries=galleries(results, told, blocks),
        css=files(_PACKAGE).joinpath("page.css").read_text("utf-8"),
    )
    return printable(page)


def _breakable(label: str) -> Markup:
    """Return a label that may be broken before a long value, and within long names."""
    return Markup(_BREAKS.sub(r"\g<0><wbr>", str(escape(label))))
