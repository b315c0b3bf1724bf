"""Files that commands write: a new one takes the place of the old one when it is complete."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Container, Iterator
from contextlib import contextmanager, suppress
from errno import EACCES, EISDIR, ELOOP
from io import BufferedWriter, FileIO
from pathlib import Path
from shutil import copymode
from stat import S_ISREG
from typing import Any, BinaryIO, TextIO

from paged_core.errors import PagedCoreError, SettingsError

_PARTIAL = re.compile(r"(?P<name>.+)\.(?P<pid>\d{1,9})\.partial", re.DOTALL)
_MOST_LINKS = 40
"""Links of a chain, at most; the kernel follows no more."""
_OPEN_FILES = (Path("/proc"), Path("/dev/fd"))
"""Where a path stands for what a process has open."""


class WriteFailed(PagedCoreError):
    """A file could not be written; what it had before is still there."""


def unwritable(path: Path, error: OSError, key: str = "") -> SettingsError:
    """Return the error to raise where a file that was asked for can never be written.

    Args:
        key: of the setting that names it, if one does.
    """
    where = f"{key}: " if key else ""
    return SettingsError(f"{where}{_cannot_write(path, error)}")


def _cannot_write(path: Path, error: OSError) -> str:
    return f"{path} cannot be written: {error.strerror or error}; name another file"


def open_log(path: Path, key: str, *, appends: bool = False) -> TextIO:
    """Open the log of an observer, line by line as it goes; make its folder if it is missing.

    What an engine wrote before it was lost and started again is not lost with it.

    Args:
        key: of the setting that names it.
        appends: go on behind what the file has; otherwise that is kept as the file ``PATH.1``.

    Raises:
        SettingsError: it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not appends and path.is_file() and path.stat().st_size:
            path.replace(path.with_name(f"{path.name}.1"))
        return path.open("a", encoding="utf-8", buffering=1)
    except OSError as error:
        raise unwritable(path, error, key) from None


def prepare_file(path: Path, key: str) -> None:
    """Check that the file of an observer can be written at the end; make its folder.

    Args:
        key: of the setting that names it.

    Raises:
        SettingsError: it cannot.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try_replacing(path)
    except OSError as error:
        raise unwritable(path, error, key) from None


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Yield a file whose content takes the place of that of ``path`` once the block has ended.

    If the block raises, what was there stays, with its mode. A link stays what it is: the file that
    it leads to is replaced, or made. A device, a pipe and ``/dev/stdout`` are written to directly.

    Raises:
        WriteFailed: the file cannot be written.
    """
    partial = None
    with _named(path):
        target = _target(path)
        if target is not None:
            partial = _partial(target)
            partial.unlink(missing_ok=True)
        file = BufferedWriter(_NamedFile(path, partial))
    try:
        yield file
        with _named(path):
            file.close()
            if partial is not None and target is not None:
                if target.exists():
                    copymode(target, partial)
                partial.replace(target)
    finally:
        with suppress(OSError, WriteFailed):
            file.close()
        if partial is not None:
            partial.unlink(missing_ok=True)


class _NamedFile(FileIO):
    """A file that is written to; errors name ``path``, whichever file it is.

    Args:
        partial: what is opened in its place, if anything is.
    """

    def __init__(self, path: Path, partial: Path | None) -> None:
        super().__init__(*((path, "a") if partial is None else (partial, "x")))
        self._path = path

    def write(self, content: Any, /) -> int:
        with _named(self._path):
            return super().write(content)


@contextmanager
def _named(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise WriteFailed(_cannot_write(path, error)) from None


def try_replacing(path: Path) -> None:
    """Raise OSError if a file cannot be replaced; it stays as it is, or missing.

    Permissions do not say it of every folder: to the superuser all seem to be writable. What killed
    processes have left of the same file is removed.
    """
    target = _target(path)
    if target is None:
        path.stat()
        if not os.access(path, os.W_OK):
            raise PermissionError(EACCES, os.strerror(EACCES))
        return
    partial = _partial(target)
    partial.unlink(missing_ok=True)
    partial.touch(exist_ok=False)
    partial.unlink()
    with suppress(OSError):  # a folder that may be written to, but not listed
        remove_partials(target.parent, {target.name})


def remove_partials(folder: Path, names: Container[str]) -> None:
    """Remove what processes that were killed have left of files of these names in a folder.

    That of a process which lives is kept, and so is what is no regular file.
    """
    for path in folder.iterdir():
        found = _PARTIAL.fullmatch(path.name)
        if (
            (found and found["name"] in names)
            and not _lives(int(found["pid"]))
            and S_ISREG(path.lstat().st_mode)
        ):
            path.unlink(missing_ok=True)


def is_partial(path: Path, name: str) -> bool:
    """Say whether a path is that of an unfinished file of a name."""
    found = _PARTIAL.fullmatch(path.name)
    return found is not None and found["name"] == name


def _partial(target: Path) -> Path:
    return target.with_name(f"{target.name}.{os.getpid()}.partial")


def _lives(pid: int) -> bool:
    """Say whether a process other than this one has a number."""
    import psutil

    return pid != os.getpid() and psutil.pid_exists(pid)


def _target(path: Path) -> Path | None:
    """Return the regular file that a path leads to, or where one is to be made.

    ``None``: it leads to a device, a pipe, or what a process has open, which are written to as they
    are.

    Raises:
        OSError: it leads to none of these, or nowhere.
    """
    for _ in range(_MOST_LINKS):
        path = path.parent.resolve() / path.name
        if any(path.is_relative_to(folder) for folder in _OPEN_FILES):
            return None
        if path.is_symlink():
            path = path.parent / path.readlink()
            continue
        if path.is_dir():
            raise IsADirectoryError(EISDIR, os.strerror(EISDIR))
        if not path.exists():
            return path
        if not path.is_file():
            return None
        if not os.access(path, os.W_OK):  # a folder lets it be replaced nevertheless
            raise PermissionError(EACCES, os.strerror(EACCES))
        return path
    raise OSError(ELOOP, os.strerror(ELOOP))


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file, or replace it whole; WriteFailed if that fails."""
    with replacing(path) as file:
        file.write(content)


def write_text(path: Path, text: str) -> None:
    """Write a file, or replace it whole; WriteFailed if that fails."""
    write_bytes(path, text.encode())


def write_json(path: Path, value: Any) -> None:
    """Write one document of JSON; WriteFailed if that fails."""
    write_text(path, json.dumps(value, indent=2) + "\n")
