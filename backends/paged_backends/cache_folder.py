"""Folders of the user's cache: private, and locked while something is made in them."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from paged_core.log import get_logger

_log = get_logger()


def make_private(folder: Path) -> None:
    """Make the folder, writable by this user only.

    If other users could write to it, its files may be theirs and are deleted.

    Raises:
        OSError: it is not writable, or belongs to another user.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, "is not a folder of its own")
    if found.st_uid != os.getuid():
        raise PermissionError(errno.EPERM, "belongs to another user")
    if found.st_mode & 0o077:
        folder.chmod(0o700)
    if found.st_mode & 0o022:
        _log.warning("cache_was_open_to_others", path=str(folder), consequence="made again")
        for path in folder.iterdir():
            if not path.is_dir() or path.is_symlink():
                path.unlink()
    with tempfile.TemporaryFile(dir=folder):
        pass


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock at ``path``, once it is free; it ends with the process."""
    import fcntl

    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
