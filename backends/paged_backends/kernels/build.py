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
    """A shared library: its sources and how they are compiled."""

    name: str
    """First part of the file's name."""
    sources: Path
    """Folder of the sources. A change to any file in it means another library."""
    units: tuple[str, ...]
    """Files of that folder that are compiled; the others are included by these."""
    flags: tuple[str, ...]
    """All arguments of the compiler except the names of files."""

    def paths(self) -> list[Path]:
        """Return the paths of the units."""
        return [self.sources / unit for unit in self.units]


class Compiler(Protocol):
    """Compiles a library."""

    @property
    def identity(self) -> tuple[str, ...]:
        """Command and version; another identity means another library."""

    def build(self, sources: Sequence[Path], flags: Sequence[str], target: Path, /) -> None:
        """Compile ``sources`` and link them to the shared library ``target``.

        Raises:
            CannotCompile: it failed; the message ends with the compiler's own.
        """
