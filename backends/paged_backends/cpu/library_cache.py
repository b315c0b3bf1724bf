"""Compiled libraries, kept in the user's cache directory and made again when anything changes.

A library's name carries a hash of its sources, the flags, the compiler and the kind of machine. It
is written beside its place and renamed into it; a lock keeps a second process from building the
same. Its own hash lies beside it, so that a damaged file is noticed before it is loaded.
"""

from __future__ import annotations

import errno
import hashlib
import os
import platform
import stat
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter

from paged_backends.cpu.compiler import CannotCompile, Compiler
from paged_core.cache_dir import cache_dir
from paged_core.log import get_logger

SOURCES = Path(__file__).parent / "source"

_log = get_logger()


def library(
    name: str,
    units: Sequence[str],
    flags: Sequence[str],
    compiler: Compiler,
    folder: Path | None = None,
) -> Path:
    """Return the compiled library of the ``units``, names of files in ``source``.

    Args:
        name: its first name.
        flags: in addition to the compiler's.
        folder: where it is kept; ``None``: the user's cache directory, or, where that cannot be
            written, a folder of this user among the temporary files.

    Raises:
        CannotCompile: it must be built, and cannot be; or there is nowhere to keep it.
    """
    place = folder or _folder()
    path = place / f"{name}-{_key(units, flags, compiler)}.so"
    if _is_whole(path):
        return path
    with _locked(path.with_suffix(".lock")):
        if _is_whole(path):  # another process has built it meanwhile
            return path
        started = perf_counter()
        unfinished = path.with_suffix(f".{os.getpid()}.tmp")
        try:
            compiler.build([SOURCES / unit for unit in units], flags, unfinished)
            _note(path).write_text(_hash(unfinished), "ascii")
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)
        _log.info("kernels_compiled", path=str(path), seconds=round(perf_counter() - started, 2))
    return path


def _key(units: Sequence[str], flags: Sequence[str], compiler: Compiler) -> str:
    """Everything that the library depends on, in 16 hexadecimal digits."""
    known = hashlib.sha256()
    for part in (
        platform.system(),
        platform.machine(),
        *compiler.command,
        compiler.version,
        *compiler.flags(flags),
        *units,
    ):
        known.update(part.encode() + b"\0")
    for path in sorted(SOURCES.iterdir()):
        known.update(path.name.encode() + b"\0" + path.read_bytes())
    return known.hexdigest()[:16]


def _folder() -> Path:
    """The folder of compiled libraries, for this user's eyes only.

    Raises:
        CannotCompile: there is no folder that nobody else can write to.
    """
    wanted = cache_dir() / "kernels"
    spare = Path(tempfile.gettempdir()) / f"paged_core-{os.getuid()}"
    reasons = []
    for folder in (wanted, spare):
        try:
            _make_private(folder)
        except OSError as error:
            reasons.append(f"{folder}: {error.strerror or error}")
        else:
            if reasons:
                _log.warning("cache_not_writable", reason=reasons[0], used=str(folder))
            return folder
    raise CannotCompile(
        f"no folder for compiled kernels ({'; '.join(reasons)}); set PAGED_CORE_CACHE_DIR to one"
    )


def _make_private(folder: Path) -> None:
    """Make it and see that it can be written, and by nobody else: code is loaded from it.

    Raises:
        OSError: it cannot, or it is another's.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if found.st_uid != os.getuid() or not stat.S_ISDIR(found.st_mode):
        raise PermissionError(errno.EPERM, "belongs to somebody else")
    if found.st_mode & 0o077:
        folder.chmod(0o700)
    with tempfile.TemporaryFile(dir=folder):
        pass


def _note(path: Path) -> Path:
    return path.with_suffix(".sha256")


def _is_whole(path: Path) -> bool:
    try:
        return _note(path).read_text("ascii") == _hash(path)
    except (OSError, ValueError):
        return False


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock at ``path``, after whoever holds it now; it ends with its process."""
    import fcntl

    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
