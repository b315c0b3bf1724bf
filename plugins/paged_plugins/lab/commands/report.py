"""``paged-core lab report``: what a folder of results says."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paged_plugins.command_options import check_writable


def report_command(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="As `lab run` has written it.")],
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a page with plots.", callback=check_writable),
    ] = None,
    markdown: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write tables in Markdown.", callback=check_writable),
    ] = None,
    measure: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="What to compare (default: everything); repeatable. The fewer, the narrower the "
            "intervals.",
        ),
    ] = None,
    block_map: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw what the observer block_map has written, too."),
    ] = None,
) -> None:
    """Report results: the answer, differences with confidence intervals, plots, what was run.

    Without options, `report.md` and `report.html` are written into the folder. The answer is
    printed too.
    """
    from paged_plugins.block_history import BlockHistory
    from paged_plugins.lab.commands.chosen_measures import chosen_measures
    from paged_plugins.lab.measures.measure import MEASURES
    from paged_plugins.lab.report import write_html, write_markdown
    from paged_plugins.lab.results.load_results import load_results
    from paged_plugins.lab.statistics.differences import differences
    from paged_plugins.lab.statistics.sentences import sentences

    results = load_results(folder)
    measures = chosen_measures(measure, results.slo) or list(MEASURES)
    blocks = None if block_map is None else BlockHistory(block_map)
    if html is None and markdown is None:
        html, markdown = folder / "report.html", folder / "report.md"
    if markdown is not None:
        write_markdown(results, markdown, measures=measures)
    if html is not None:
        write_html(results, html, measures=measures, blocks=blocks)
    for sentence in sentences(results, differences(results, measures=measures)):
        typer.echo(sentence)
    for path in filter(None, (markdown, html)):
        typer.echo(f"wrote {path}")
