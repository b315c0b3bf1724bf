"""Compilers of CUDA code: nvcc, and NVRTC, which PyTorch's CUDA wheels bring as a library.

A variant of the kernels is compiled by the first of them whose code the driver takes.
"""

from __future__ import annotations

import ctypes
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from ctypes import byref, c_char_p, c_size_t, c_void_p
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import repeat
from pathlib import Path
from typing import Any

from paged_backends.kernels.build import (
    CannotCompile,
    Compiler,
    compile_with,
    essential,
    library,
    run,
)
from paged_backends.kernels.cuda.driver import Context, GpuModule
from paged_backends.kernels.cuda.kernel import KernelError, Variant
from paged_core.log import get_logger

_log = get_logger()

_REMEDY = (
    "install NVRTC (`pip install nvidia-cuda-nvrtc nvidia-cuda-runtime`) or set CUDA_HOME to a "
    "CUDA toolkit"
)
_FLAGS = ("-cubin", "-O3")
_NVCC_REMEDY = "set CUDA_HOME to a CUDA toolkit that works here"
_HEADER = "cuda_bf16.h"
_TARGET_HEADER = "nv/target"
"""Included by others; in older releases it is in a package of its own."""


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
        compile_with([self.path, *_FLAGS, *flags, str(source), "-o", str(target)], _NVCC_REMEDY)


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


@dataclass(frozen=True, slots=True)
class Nvrtc:
    """An NVRTC that was found; see :class:`~paged_backends.kernels.build.Compiler`."""

    path: Path
    headers: tuple[Path, ...]
    """Folders of CUDA's headers: NVRTC has none itself."""

    @property
    def identity(self) -> tuple[str, ...]:
        """Path, size and time of change, since it is large to load, and folders of headers."""
        found = self.path.stat()
        state = (str(self.path), str(found.st_size), str(found.st_mtime_ns))
        return ("nvrtc", *state, *map(str, self.headers))

    @classmethod
    def find(cls, environ: Mapping[str, str] = os.environ) -> Nvrtc:
        """Return that of an installed Python package, or else of a CUDA toolkit; it is not loaded.

        Raises:
            CannotCompile: there is none, or it has no headers.
        """
        reason = "there is no NVRTC among the Python packages or in a CUDA toolkit"
        packages = list(_package_folders())
        for folder in (*packages, *toolkit_folders(environ)):
            for path in _libraries(folder):
                headers = tuple(_headers(folder, packages))
                if headers:
                    return cls(path, headers)
                reason = f"{path} has no {_HEADER} beside it"
        raise CannotCompile(reason)

    def build(self, sources: Sequence[Path], flags: Sequence[str], target: Path, /) -> None:
        """Compile the one source to the cubin ``target``; see
        :class:`~paged_backends.kernels.build.Compiler`."""
        (source,) = sources
        includes = [f"-I{folder}" for folder in (source.parent, *self.headers)]
        program = _Library(self.path).compile(source, [*flags, *includes])
        target.write_bytes(program)


class _Library:
    """The functions of NVRTC that are needed."""

    def __init__(self, path: Path) -> None:
        """
        Raises:
            CannotCompile: it cannot be loaded.
        """
        self._path = path
        # NVRTC looks for them by name alone, which finds what is loaded already
        builtins = sorted(path.parent.glob("libnvrtc-builtins.so*"))
        try:
            self._builtins = [ctypes.CDLL(str(file)) for file in builtins]
            self._loaded = ctypes.CDLL(str(path))
        except OSError as error:
            raise CannotCompile(f"{path} cannot be loaded: {error}") from error
        self._loaded.nvrtcGetErrorString.restype = c_char_p

    def compile(self, source: Path, flags: Sequence[str]) -> bytes:
        """Return the cubin.

        Raises:
            CannotCompile: it failed; the message ends with that of NVRTC.
        """
        program = c_void_p()
        text, name = source.read_bytes(), str(source).encode()
        self._call("nvrtcCreateProgram", byref(program), text, name, 0, None, None)
        try:
            given = (c_char_p * len(flags))(*(flag.encode() for flag in flags))
            if code := self._loaded.nvrtcCompileProgram(program, len(flags), given):
                log = self._read("ProgramLog", program).rstrip(b"\0").decode(errors="replace")
                said = "\n".join(essential(log)) or self._message(code)
                raise CannotCompile(f"{self._path.name} failed: {said}")
            return self._read("CUBIN", program)
        finally:
            self._loaded.nvrtcDestroyProgram(byref(program))

    def _read(self, what: str, program: c_void_p) -> bytes:
        size = c_size_t()
        self._call(f"nvrtcGet{what}Size", program, byref(size))
        held = ctypes.create_string_buffer(size.value)
        self._call(f"nvrtcGet{what}", program, held)
        return held.raw

    def _call(self, name: str, *arguments: Any) -> None:
        if code := getattr(self._loaded, name)(*arguments):
            raise CannotCompile(f"{self._path.name}: {name} failed: {self._message(code)}")

    def _message(self, code: int) -> str:
        return str(self._loaded.nvrtcGetErrorString(code).decode())


def _package_folders() -> Iterator[Path]:
    """Folders of NVIDIA's Python packages, the newest release first."""
    found = find_spec("nvidia")
    for place in (found and found.submodule_search_locations) or ():
        yield from sorted(filter(Path.is_dir, Path(place).iterdir()), reverse=True)


def _libraries(folder: Path) -> Iterator[Path]:
    for place in ("lib", "lib64"):
        yield from sorted((folder / place).glob("libnvrtc.so*"), reverse=True)


def _headers(folder: Path, packages: Sequence[Path]) -> Iterator[Path]:
    """The first folders that have what the kernels include, that of the library before others."""
    candidates = [one / "include" for one in (folder, *packages)]
    main = next((one for one in candidates if (one / _HEADER).is_file()), None)
    if main is None:
        return
    yield main
    if not (main / _TARGET_HEADER).is_file():
        yield from (one for one in candidates if (one / _TARGET_HEADER).is_file())


def find_compilers(
    environ: Mapping[str, str] = os.environ,
) -> Sequence[Nvcc | Nvrtc] | CannotCompile:
    """Return nvcc and NVRTC, as far as they are here, or why neither is."""
    found: list[Nvcc | Nvrtc] = []
    reasons = []
    for kind in (Nvcc, Nvrtc):
        try:
            found.append(kind.find(environ))
        except CannotCompile as error:
            reasons.append(str(error))
    return found or CannotCompile(f"{'; '.join(reasons)}; {_REMEDY}")


def load_variant(
    variant: Variant,
    context: Context,
    architecture: str,
    compilers: Sequence[Compiler] | CannotCompile,
) -> GpuModule:
    """Return the kernels on a device, compiled first if they are not in the cache: their parts at
    the same time.

    What a compiler makes and the driver refuses, as an old driver does with what a newer nvcc made,
    is made by the next one, with a warning.

    Raises:
        CannotCompile: no compiler makes what the driver takes.
    """
    builds = variant.cubins(architecture)
    candidates = [compilers] if isinstance(compilers, CannotCompile) else list(compilers)
    reasons = []
    for candidate in candidates:
        try:
            with ThreadPoolExecutor(len(builds)) as pool:
                paths = list(pool.map(library, builds, repeat(candidate)))
            code = [path.read_bytes() for path in paths]
            return GpuModule(context, code, builds[0].name)
        except (CannotCompile, KernelError) as error:
            reasons.append(str(error))
            if candidate is not candidates[-1]:
                _log.warning("cuda_compiler_passed_over", reason=str(error))
    raise CannotCompile("; ".join(reasons))
