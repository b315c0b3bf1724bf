"""Options that name a file to write."""

from __future__ import annotations

import os
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
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise typer.BadParameter(f"{path} cannot be written here; choose another file")
    return path


JsonFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Write the same JSON to a file.", callback=check_writable),
]
