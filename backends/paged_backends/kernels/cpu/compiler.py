"""The system's C++ compiler, and running it."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from paged_backends.kernels.build import Build, CannotCompile
from paged_backends.kernels.compiler_process import compile_with, run

SOURCES = Path(__file__).parent / "source"
"""Folder of the C++ sources."""

_NAMES = ("c++", "g++", "clang++")
_BASE_FLAGS = ("-std=c++17", "-fPIC", "-fopenmp", "-fvisibility=hidden", "-w")
_MATH_FLAGS = ("-O2", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast")
_REMEDY = "install g++ (`apt-get install g++`, `dnf install gcc-c++`) or set CXX to a C++ compiler"


def cpp_build(name: str, units: Sequence[str], flags: Sequence[str] = ()) -> Build:
    """Return the build of these files of :data:`SOURCES`; ``flags`` follow those of every build."""
    return Build(
        name=name, sources=SOURCES, units=tuple(units), flags=(*_BASE_FLAGS, *_MATH_FLAGS, *flags)
    )


@dataclass(frozen=True, slots=True)
class CppCompiler:
    """A C++ compiler that was found; see :class:`~paged_backends.kernels.build.Compiler`."""

    command: tuple[str, ...]
    version: str
    """First line of the output of ``--version``."""

    @property
    def identity(self) -> tuple[str, ...]:
        """Command and version."""
        return (*self.command, self.version)

    @classmethod
    def find(cls, environ: Mapping[str, str] = os.environ) -> CppCompiler:
        """Return the compiler that ``CXX`` names, or the first of c++, g++ and clang++ that runs.

        Raises:
            CannotCompile: none runs.
        """
        chosen = environ.get("CXX")
        for command in [tuple(shlex.split(chosen))] if chosen else [(name,) for name in _NAMES]:
            path = shutil.which(command[0], path=environ.get("PATH"))
            if path is None:
                continue
            full = (path, *command[1:])
            done = run([*full, "--version"])
            if done is not None and done.returncode == 0:
                return cls(full, done.stdout.partition("\n")[0])
        if chosen:
            raise CannotCompile(f"CXX={chosen} does not run; {_REMEDY}")
        raise CannotCompile(f"there is no C++ compiler; {_REMEDY}")

    def build(self, sources: Sequence[Path], flags: Sequence[str], target: Path, /) -> None:
        """Compile ``sources`` in parallel and link them to the shared library ``target``.

        Raises:
            CannotCompile: it failed; the message ends with the compiler's own.
        """
        self.build_units([(source, flags) for source in sources], flags, target)

    def build_units(
        self, units: Sequence[tuple[Path, Sequence[str]]], link_flags: Sequence[str], target: Path
    ) -> None:
        """Compile sources, each with flags of its own, and link them.

        Raises:
            CannotCompile: it failed; the message ends with the compiler's own.
        """
        objects = [target.with_name(f"{target.name}.{source.stem}.o") for source, _ in units]
        jobs = [
            [*self.command, *flags, "-c", str(source), "-o", str(made)]
            for (source, flags), made in zip(units, objects, strict=True)
        ]
        try:
            with ThreadPoolExecutor(len(jobs)) as pool:
                list(pool.map(lambda job: compile_with(job, _REMEDY), jobs))
            link = [*self.command, *link_flags, "-shared", *map(str, objects), "-o", str(target)]
            compile_with(link, _REMEDY)
        finally:
            for made in objects:
                made.unlink(missing_ok=True)


def find_compiler() -> CppCompiler | CannotCompile:
    """Return the compiler, or why there is none: a library in the cache can still be used."""
    try:
        return CppCompiler.find()
    except CannotCompile as error:
        return error
