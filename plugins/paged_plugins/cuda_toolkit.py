"""Where the CUDA toolkit is, as far as it is installed: nvcc, and the run-time compiler NVRTC."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

_USUAL = Path("/usr/local/cuda")


def cuda_folder() -> Path | None:
    """Return the folder of the toolkit: $CUDA_HOME, $CUDA_PATH, or the usual one."""
    named = (os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH"))
    places = [*(Path(place) for place in named if place), _USUAL]
    return next((place for place in places if place.is_dir()), None)


def nvcc() -> Path | None:
    """Return the compiler: of $PATH, of the toolkit, or of the package nvidia-cuda-nvcc."""
    found = shutil.which("nvcc")
    if found is not None:
        return Path(found)
    folders = [place / "bin" for place in _folders()]
    return next((path for folder in folders if (path := folder / "nvcc").is_file()), None)


def nvrtc() -> Path | None:
    """Return the library: of the package nvidia-cuda-nvrtc, or of the toolkit."""
    for place in _folders():
        for folder in (place / "lib", place / "lib64"):
            found = sorted(folder.glob("libnvrtc.so*"))
            if found:
                return found[-1]
    return None


def _folders() -> Iterator[Path]:
    """Yield what is laid out like a toolkit: those of the packages of NVIDIA, then the toolkit."""
    spec = find_spec("nvidia")
    for place in (spec and spec.submodule_search_locations) or ():
        yield from sorted(Path(place).glob("*/"))
    toolkit = cuda_folder()
    if toolkit is not None:
        yield toolkit
