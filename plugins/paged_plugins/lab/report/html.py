"""The report as one HTML file that needs nothing else: no network, no script."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from paged_plugins.lab.report.contents import contents
from paged_plugins.lab.report.output import write_text
from paged_plugins.lab.report.pictures.galleries import galleries
from paged_plugins.lab.report.pictures.svg import printable
from paged_plugins.lab.results import Results

_PACKAGE = "paged_plugins.lab.report"


def write_html(results: Results, path: Path) -> None:
    """Write the report of ``results``; equal results make equal files.

    Raises:
        SettingsError: matplotlib is not installed, or the file cannot be written.
    """
    write_text(path, html(results))


def html(results: Results) -> str:
    """Return the report of ``results`` as a page; SettingsError if matplotlib is not installed."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader(_PACKAGE, ""),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    told = contents(results)
    page = environment.get_template("page.html").render(
        contents=told,
        galleries=galleries(results, told),
        css=files(_PACKAGE).joinpath("page.css").read_text("utf-8"),
    )
    return printable(page)
