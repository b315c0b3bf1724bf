"""Compiled libraries, kept in the user's cache directory and made again when anything changes.

A library's name carries two hashes: of its sources, the flags and the kind of machine; and of the
compiler. Where there is no compiler, what another has made serves. It is written beside its place
and renamed into it; a lock keeps a second process from building the same. Its own hash lies beside
it, so that a damaged file is noticed before it is loaded.
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
from functools import cache
from pathlib import Path
from time import perf_counter

from paged_backends.kernels.cpu.compiler import CannotCompile, Compiler, all_flags
from paged_core.config.cache_dir import cache_dir
from paged_core.log import get_logger

SOURCES = Path(__file__).parent / "cpu" / "source"

_log = get_logger()


def library(
    name: str,
    units: Sequence[str],
    flags: Sequence[str],
    compiler: Compiler | CannotCompile,
    folder: Path | None = None,
) -> Path:
    """Return the compiled library of the ``units``, names of files in ``source``.

    Args:
        name: its first name.
        flags: in addition to the compiler's.
        compiler: or why there is none; then it must have been compiled before.
        folder: where it is kept; ``None``: the user's cache directory, or, where that cannot be
            written, a folder of this user among the temporary files.

    Raises:
        CannotCompile: it must be built, and cannot be; or there is nowhere to keep it.
    """
    place = folder or _folder()
    if isinstance(compiler, CannotCompile):
        kept = _kept(place, name, units, flags)
        if not kept:
            raise compiler
        return kept[0]
    path = place / f"{_stem(name, units, flags)}-{_digest(*compiler.command, compiler.version)}.so"
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


def is_kept(name: str, units: Sequence[str], flags: Sequence[str]) -> bool:
    """Whether some compiler has made it before."""
    try:
        return bool(_kept(_folder(), name, units, flags))
    except CannotCompile:
        return False


def discard(path: Path) -> None:
    """Forget a library that turns out to be of no use, so that it is made again."""
    _note(path).unlink(missing_ok=True)
    path.unlink(missing_ok=True)


def _kept(place: Path, name: str, units: Sequence[str], flags: Sequence[str]) -> list[Path]:
    return [path for path in place.glob(f"{_stem(name, units, flags)}-*.so") if _is_whole(path)]


def _stem(name: str, units: Sequence[str], flags: Sequence[str]) -> str:
    """The name, and a hash of all that a library depends on but the compiler."""
    parts: list[str | bytes] = [platform.system(), platform.machine(), *all_flags(flags), *units]
    for path in sorted(SOURCES.iterdir()):
        parts += [path.name, path.read_bytes()]
    return f"{name}-{_digest(*parts)}"


def _digest(*parts: str | bytes) -> str:
    """16 hexadecimal digits."""
    known = hashlib.sha256()
    for part in parts:
        known.update((part if isinstance(part, bytes) else part.encode()) + b"\0")
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
                _warn_once(reasons[0], str(folder))
            return folder
    raise CannotCompile(
        f"no folder for compiled kernels ({'; '.join(reasons)}); set PAGED_CORE_CACHE_DIR to one"
    )


@cache
def _warn_once(reason: str, used: str) -> None:
    _log.warning("cache_not_writable", reason=reason, used=used)


def _make_private(folder: Path) -> None:
    """Make it and see that it can be written, and by nobody else: code is loaded from it.

    Where others could write so far, what lies there may be theirs, and goes.

    Raises:
        OSError: it cannot, or it is another's.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, "is not a folder of its own")
    if found.st_uid != os.getuid():
        raise PermissionError(errno.EPERM, "belongs to somebody else")
    if found.st_mode & 0o077:
        folder.chmod(0o700)
    if found.st_mode & 0o022:
        _log.warning("cache_was_open_to_others", path=str(folder), consequence="compiled again")
        for path in folder.iterdir():
            if not path.is_dir() or path.is_symlink():
                path.unlink()
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
