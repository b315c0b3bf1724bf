"""What is compiled, and what compiles it: what the library cache needs to know of a language."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


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
    """Of the file: a shared library's, or that of code for another processor."""

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
