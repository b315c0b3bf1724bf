"""Builds of kernels, and the cache of compiled libraries that all languages share.

Libraries are kept in the user's cache directory and rebuilt when anything changes. The file name of
one carries two hashes: one of its sources, the flags and the machine type, and one of the compiler.
Without a compiler, a library that was built before is used. A library is written to a temporary
file and renamed; a lock keeps two processes from building the same one. Its SHA-256 is kept in a
file beside it, so that a damaged library is detected before it is loaded.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import Protocol

from paged_backends.cache_folder import locked, make_private
from paged_core.log import get_logger
from paged_core.settings.environment import cache_dir


class CannotCompile(Exception):
    """There is no compiler, or compiling failed; the message says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """A compiled file: its sources and how they are compiled."""

    name: str
    """First part of the file's name."""
    sources: Path
    """Folder of the sources. A change to any file in it means another library."""
    units: tuple[str, ...]
    """Files of that folder that are compiled; the others are included by these."""
    flags: tuple[str, ...]
    """All arguments of the compiler except the names of files and folders."""
    includes: tuple[Path, ...] = ()
    """Further folders whose files these include; a change to any of them counts as well."""
    suffix: str = ".so"
    """Suffix of the file: a shared library's, or that of code for another processor."""

    def paths(self) -> list[Path]:
        """Return the paths of the units."""
        return [self.sources / unit for unit in self.units]

    def arguments(self) -> tuple[str, ...]:
        """Return the arguments of the compiler except the names of files."""
        return (*self.flags, *(f"-I{folder}" for folder in self.includes))


class Compiler(Protocol):
    """Compiles a library, or code for another processor."""

    @property
    def identity(self) -> tuple[str, ...]:
        """Command and version; another identity means another library."""

    def build(self, sources: Sequence[Path], flags: Sequence[str], target: Path, /) -> None:
        """Compile ``sources`` to the one file ``target``.

        Raises:
            CannotCompile: it failed; the message ends with the compiler's own.
        """


def compile_with(job: Sequence[str], remedy: str) -> None:
    """Run a compiler with its arguments.

    Raises:
        CannotCompile: it failed, or does not run; the message ends with its own, or with
            ``remedy``.
    """
    done = run(job, timeout=300)
    if done is None:
        raise CannotCompile(f"{job[0]} does not run or takes minutes; {remedy}")
    if done.returncode:
        said = "\n".join(essential(done.stderr)) or f"exit status {done.returncode}"
        raise CannotCompile(f"{job[0]} failed: {said}")


def essential(text: str) -> Iterator[str]:
    """The first lines that mention an error."""
    lines = text.strip().splitlines()
    errors = [line for line in lines if "error" in line.lower()]
    yield from (errors or lines)[:5]


def run(job: Sequence[str], timeout: float = 30) -> subprocess.CompletedProcess[str] | None:
    """Run a command; ``None``: it cannot be run, or has not ended after ``timeout`` seconds."""
    try:
        return subprocess.run(
            job, capture_output=True, text=True, errors="replace", timeout=timeout, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None


_ROOM = 32 << 20
"""Bytes that a library, its objects and its checksum take at most."""
_log = get_logger()


def library(build: Build, compiler: Compiler | CannotCompile, folder: Path | None = None) -> Path:
    """Return the path of the compiled library, built first if it is not in the cache.

    Args:
        compiler: or why there is none; then the library must be in the cache.
        folder: the cache; ``None``: the user's cache directory or, if that is not writable, a
            folder of this user among the temporary files.

    Raises:
        CannotCompile: it is not in the cache and cannot be built, or no folder is writable.
    """
    cached = folder or _folder()
    if isinstance(compiler, CannotCompile):
        found = _find(cached, build)
        if not found:
            raise compiler
        return found[0]
    path = cached / f"{_stem(build)}-{_digest(*compiler.identity)}{build.suffix}"
    if _is_intact(path):
        return path
    with locked(path.with_suffix(".lock")):
        if _is_intact(path):  # another process has built it meanwhile
            return path
        free = shutil.disk_usage(cached).free
        if free < _ROOM:
            raise CannotCompile(
                f"{cached}: {_ROOM >> 20} MiB are needed to compile, {free >> 20} are free; "
                "make room there, or set PAGED_CORE_CACHE_DIR to another folder"
            )
        started = perf_counter()
        unfinished = path.with_suffix(f".{os.getpid()}.tmp")
        try:
            compiler.build(build.paths(), build.arguments(), unfinished)
            _checksum_file(path).write_text(_hash(unfinished), "ascii")
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)
        _log.info("kernels_compiled", path=str(path), seconds=round(perf_counter() - started, 2))
    return path


def is_cached(build: Build) -> bool:
    """Return True if the library is in the user's cache, whichever compiler built it."""
    try:
        return bool(_find(_folder(), build))
    except CannotCompile:
        return False


def discard(path: Path) -> None:
    """Delete a library that cannot be used, so that it is built again."""
    _checksum_file(path).unlink(missing_ok=True)
    path.unlink(missing_ok=True)


def _find(folder: Path, build: Build) -> list[Path]:
    return [path for path in folder.glob(f"{_stem(build)}-*{build.suffix}") if _is_intact(path)]


def _stem(build: Build) -> str:
    """The name, and a hash of all that a library depends on except the compiler."""
    parts: list[str | bytes] = [platform.system(), platform.machine(), *build.flags, *build.units]
    for folder in (build.sources, *build.includes):
        for path in sorted(folder.iterdir()):
            parts += [path.name, path.read_bytes()]
    return f"{build.name}-{_digest(*parts)}"


def _digest(*parts: str | bytes) -> str:
    """16 hexadecimal digits."""
    known = hashlib.sha256()
    for part in parts:
        known.update((part if isinstance(part, bytes) else part.encode()) + b"\0")
    return known.hexdigest()[:16]


def _folder() -> Path:
    """The folder of compiled libraries, accessible to this user only.

    Raises:
        CannotCompile: there is no folder that only this user can write to.
    """
    wanted = cache_dir() / "kernels"
    spare = Path(tempfile.gettempdir()) / f"paged_core-{os.getuid()}"
    reasons = []
    for folder in (wanted, spare):
        try:
            make_private(folder)
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


def _checksum_file(path: Path) -> Path:
    return path.with_suffix(".sha256")


def _is_intact(path: Path) -> bool:
    try:
        return _checksum_file(path).read_text("ascii") == _hash(path)
    except (OSError, ValueError):
        return False


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
