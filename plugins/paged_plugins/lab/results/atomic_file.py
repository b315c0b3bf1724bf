"""Files that are either whole or not there, whenever the process is killed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from paged_plugins.files import unwritable

PARTIAL = ".partial"
"""End of the name of a file that is being written."""


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a path to write to, which takes the place of ``path`` once the block has ended.

    A link, a pipe or a device stays what it is: it is written to.

    Raises:
        SettingsError: the file cannot be written.
    """
    try:
        if path.is_symlink() or (path.exists() and not path.is_file()):
            yield path
            return
        partial = path.with_name(f"{path.name}.{os.getpid()}{PARTIAL}")
        try:
            yield partial
            with partial.open("rb") as file:
                os.fsync(file.fileno())
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise unwritable(path, error) from None


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file, or replace it."""
    with replacing(path) as partial:
        partial.write_bytes(content)
