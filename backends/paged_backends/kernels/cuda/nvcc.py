"""nvcc, NVIDIA's compiler, and running it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from paged_backends.kernels.build import CannotCompile
from paged_backends.kernels.compiler_process import compile_with, run

_FLAGS = ("-cubin", "-O3")
_REMEDY = "set CUDA_HOME to a CUDA toolkit that works here"


@dataclass(frozen=True, slots=True)
class Nvcc:
    """An nvcc that was found; see :class:`~paged_backends.kernels.build.Compiler`."""

    path: str
    version: str
    """Last line of the output of ``--version``."""

    @property
    def identity(self) -> tuple[str, ...]:
        """Path, version and flags."""
        return (self.path, self.version, *_FLAGS)

    @classmethod
    def find(cls, environ: Mapping[str, str] = os.environ) -> Nvcc:
        """Return that of ``CUDA_HOME``, the one on the path, or that of ``/usr/local/cuda``.

        Raises:
            CannotCompile: none runs.
        """
        for path in candidates(environ):
            done = run([path, "--version"])
            if done is not None and done.returncode == 0:
                return cls(path, done.stdout.strip().rpartition("\n")[2])
        raise CannotCompile("there is no nvcc in CUDA_HOME, on the PATH or in /usr/local/cuda")

    def build(self, sources: Sequence[Path], flags: Sequence[str], target: Path, /) -> None:
        """Compile the one source to the cubin ``target``; see
        :class:`~paged_backends.kernels.build.Compiler`."""
        (source,) = sources
        compile_with([self.path, *_FLAGS, *flags, str(source), "-o", str(target)], _REMEDY)


def toolkit_folders(environ: Mapping[str, str]) -> Iterator[Path]:
    """The folders where a CUDA toolkit may be installed."""
    for name in ("CUDA_HOME", "CUDA_PATH"):
        if environ.get(name):
            yield Path(environ[name])
    yield Path("/usr/local/cuda")


def candidates(environ: Mapping[str, str] = os.environ) -> Iterator[str]:
    """Every nvcc that is found, in the order in which they are tried; none is run."""
    *named, usual = toolkit_folders(environ)
    places = [*(str(folder / "bin") for folder in named), environ.get("PATH", "")]
    for place in (*places, str(usual / "bin")):
        path = shutil.which("nvcc", path=place)
        if path is not None:
            yield path
