"""The options that commands share, and how they report: a table, JSON, a file of JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from paged_core.cli.options import SettingsArgs, flag
from paged_core.cli.output import echo, print_json
from paged_core.errors import SettingsError
from paged_plugins.written_files import try_replacing, write_json, write_text


def check_writable(path: Path | None) -> Path | None:
    """Refuse a file that cannot be written, before anything is measured: a callback of options.

    Raises:
        BadParameter: its folder is missing, or it is one, or may not be written.
    """
    if path is None:
        return None
    if path.is_dir():
        raise typer.BadParameter(f"{path} is a folder; give the name of a file")
    folder = path.absolute().parent
    if not folder.is_dir():
        raise typer.BadParameter(f"there is no folder {folder}; make it first")
    try:
        try_replacing(path)
    except OSError as error:
        why = f"{path} cannot be written: {error.strerror}; name another file"
        raise typer.BadParameter(why) from None
    return path


Repeats = Annotated[int, typer.Option(min=1, help="Repeats to take the median of.")]
JsonFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Write the same JSON to a file.", callback=check_writable),
]


def report(
    found: dict[str, Any],
    output: Path | None,
    as_json: bool,
    show: Callable[[dict[str, Any]], None],
) -> None:
    """Write what a command found to a file, if one is named; print it as JSON, or ``show`` it.

    Raises:
        WriteFailed: the file cannot be written.
    """
    if output is not None:
        write_json(output, found)
    if as_json:
        print_json(found)
    else:
        show(found)


@contextmanager
def reported_rows(
    names: Sequence[str],
    output: Path | None,
    as_json: bool,
    show: Callable[[Sequence[dict[str, Any]]], None],
) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Yield what is called with each row once it is measured, as JSON a line each.

    At the end the rows are written to a file, if one is named, and shown; also if a later one could
    not be measured: then those that are missing are named on standard error.

    Args:
        names: of all rows, in their order.

    Raises:
        WriteFailed: the file cannot be written.
    """
    rows: list[dict[str, Any]] = []

    def report_row(row: dict[str, Any]) -> None:
        rows.append(row)
        if as_json:
            sys.stdout.write(json.dumps(row) + "\n")
            sys.stdout.flush()

    try:
        yield report_row
    finally:
        if rows:
            if not as_json:
                show(rows)
            if len(rows) < len(names):
                echo(f"not measured: {', '.join(names[len(rows) :])}", err=True)
            if output is not None:
                write_text(output, "".join(json.dumps(row) + "\n" for row in rows))


def refuse_settings(given: SettingsArgs, reason: str) -> None:
    """Refuse the options that are settings.

    Args:
        reason: why one has no effect, and what to do instead.

    Raises:
        SettingsError: one was given.
    """
    files = {
        "--config": given.config,
        "--env-file": given.env_file,
        "--secrets-dir": given.secrets_dir,
    }
    named = [option for option, path in files.items() if path is not None]
    named += [flag(entry.path) for entry in given.options]
    if named:
        raise SettingsError(f"{named[0]} has no effect here: {reason}")
