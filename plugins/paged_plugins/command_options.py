"""The options that commands share, and how they report: a table, JSON, a file of JSON."""

from __future__ import annotations

import os
from collections.abc import Callable
from errno import EACCES
from pathlib import Path
from typing import Annotated, Any

import typer

from paged_core.cli.options import SettingsArgs, flag
from paged_core.cli.output import print_json
from paged_core.errors import SettingsError
from paged_plugins.files import write_json


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
        _try(path)
    except OSError as error:
        why = f"{path} cannot be written: {error.strerror}; name another file"
        raise typer.BadParameter(why) from None
    return path


def _try(path: Path) -> None:
    """Raise OSError if a file cannot be written; it stays as it is, or missing.

    Permissions do not say it of every folder: to the superuser all seem to be writable.
    """
    if not path.exists():
        path.touch()
        path.unlink()
    elif not os.access(path, os.W_OK):
        raise PermissionError(EACCES, os.strerror(EACCES))


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
        SettingsError: the file cannot be written.
    """
    if output is not None:
        write_json(output, found)
    if as_json:
        print_json(found)
    else:
        show(found)


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
