"""Options that name a file to write."""

from __future__ import annotations

import os
from errno import EACCES
from pathlib import Path
from typing import Annotated

import typer


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
