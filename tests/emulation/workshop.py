"""Kernels of a test, compiled for the CPU together with the shim that runs them."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from emulation.cuda_module import INCLUDES, SIMT, WATCHED, EmulatedModule, emulation_build
from paged_backends.kernels.cpu.compiler import CppCompiler, find_compiler


@dataclass(frozen=True)
class Workshop:
    """Compiles kernels; the shim is compiled once."""

    folder: Path
    checked: bool
    _shim: list[Path] = field(default_factory=list)

    def module(self, source: Path) -> EmulatedModule:
        """Return the kernels of a ``.cu`` file."""
        if not self._shim:
            names = ["runtime", "warpgroup", *(["check"] if self.checked else [])]
            self._shim.extend(self._object(SIMT / f"{name}.cpp") for name in names)
        watched = WATCHED if self.checked else ()
        made = self._object(source, (*watched, "-x", "c++"))
        library = made.with_suffix(".so")
        _run(_compiler(), "-shared", str(made), *map(str, self._shim), "-o", str(library))
        return EmulatedModule(library)

    def _object(self, source: Path, flags: Sequence[str] = ()) -> Path:
        made = self.folder / f"{source.stem}-{'checked' if self.checked else 'host'}.o"
        folders = [f"-I{folder}" for folder in INCLUDES]
        common = emulation_build(checked=self.checked).flags
        _run(_compiler(), *common, *flags, *folders, "-c", str(source), "-o", str(made))
        return made


def _compiler() -> str:
    found = find_compiler()
    if not isinstance(found, CppCompiler):
        pytest.skip(str(found))
    if shutil.which("addr2line") is None:
        pytest.skip("there is no addr2line, which names the lines of errors")
    return found.command[0]


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:4000]
