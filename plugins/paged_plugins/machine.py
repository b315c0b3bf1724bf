"""The parts of this machine: processor, memory, torch, CUDA, compilers; asked when called."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from paged_core.errors import SettingsError, error_text
from paged_core.settings.schema import EngineSettings

_PACKAGES = (
    *("paged-core", "transformers", "triton"),
    *("flash-attn", "flash-attn-3", "flash-attn-4", "flashinfer-python"),
)
_CPU_FEATURES = (
    *("avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512_bf16", "avx512_fp16"),
    *("avx512_vnni", "avx_vnni", "amx_tile", "amx_bf16", "amx_int8"),
    *("asimd", "asimddp", "asimdhp", "bf16", "i8mm", "sve", "sve2"),
)

_USUAL = Path("/usr/local/cuda")


def summary() -> dict[str, Any]:
    """Return what is reported with every result: processor, cores, Python and platform."""
    return {
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "platform": platform.platform(),
    }


def device_of(settings: EngineSettings) -> str:
    """Return the device as torch names it; ``auto``: the first GPU with CUDA, or else the CPU.

    Raises:
        SettingsError: it is a CUDA device, and torch finds none.
    """
    import torch

    device = settings.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if not device.startswith("cuda"):
        return device
    if not torch.cuda.is_available():
        raise SettingsError(
            f"device {device}: torch {torch.__version__} finds no CUDA device; `paged-core doctor` "
            "says what there is"
        )
    return device if ":" in device else f"cuda:{torch.cuda.current_device()}"


def describe_host() -> dict[str, Any]:
    """Return what there is besides PyTorch: Python, CPU, memory, CUDA, compilers."""
    import psutil

    memory = psutil.virtual_memory()
    return {
        "python": {"version": platform.python_version(), "executable": sys.executable},
        "platform": platform.platform(),
        "packages": {name: _installed(name) for name in _PACKAGES},
        "cpu": {
            "model": cpu_model(),
            "physical_cores": psutil.cpu_count(logical=False),
            "logical_cores": psutil.cpu_count(),
            "usable_cores": len(os.sched_getaffinity(0)) if sys.platform == "linux" else None,
            "features": _cpu_features(),
        },
        "memory": {"total_bytes": memory.total, "available_bytes": memory.available},
        "cuda": {
            "driver": _first_line(
                "nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"
            ),
            "toolkit": _text(cuda_folder()),
            "nvcc": _nvcc(),
            "nvrtc": _text(nvrtc()),
        },
        "compiler": _compiler(),
    }


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def describe_torch() -> dict[str, Any]:
    """Return what PyTorch is and sees, which imports it: seconds, the first time."""
    found: dict[str, Any] = {"version": _installed("torch")}
    if found["version"] is None:
        return found | {"problem": "not installed; `pip install torch`"}
    try:
        import torch

        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        devices = [torch.cuda.get_device_properties(number) for number in range(count)]
        return found | {
            "cuda": torch.version.cuda,
            "devices": [
                {
                    "name": one.name,
                    "compute_capability": f"{one.major}.{one.minor}",
                    "memory_bytes": one.total_memory,
                    "multiprocessors": one.multi_processor_count,
                }
                for one in devices
            ],
            "mps": torch.backends.mps.is_available(),
            "threads": torch.get_num_threads(),
        }
    except Exception as error:  # noqa: BLE001 - one that does not fit its libraries raises anything
        return found | {"problem": error_text(error)}


def _cpu_info() -> list[tuple[str, str]]:
    try:
        text = Path("/proc/cpuinfo").read_text("utf-8")
    except OSError:
        return []
    pairs = (line.partition(":") for line in text.splitlines())
    return [(key.strip(), value.strip()) for key, _, value in pairs]


def num_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def cpu_model() -> str | None:
    """Return the processor's name, as far as the system tells it."""
    named = (value for key, value in _cpu_info() if key == "model name")
    brand = _first_line("sysctl", "-n", "machdep.cpu.brand_string")
    return next(named, None) or brand or platform.processor() or platform.machine()


def _cpu_features() -> list[str]:
    flags = next((value for key, value in _cpu_info() if key in {"flags", "Features"}), "")
    present = set(flags.split())
    return [feature for feature in _CPU_FEATURES if feature in present]


def _nvcc() -> str | None:
    """Return where nvcc is, and its release."""
    path = nvcc()
    if path is None:
        return None
    lines = _lines(str(path), "--version")
    release = next((line.split("release ")[1] for line in lines if "release " in line), "unknown")
    return f"{path}, release {release}"


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _compiler() -> str | None:
    chosen = os.environ.get("CXX")
    for name in [chosen] if chosen else ["c++", "g++", "clang++"]:
        command = shlex.split(name)
        if line := _first_line(*command, "--version"):
            return f"{shutil.which(command[0])}: {line}"
    return None


def _first_line(*command: str) -> str | None:
    """Return the first line that a command prints, if it exists and works."""
    lines = _lines(*command)
    return lines[0].strip() if lines else None


def _lines(*command: str) -> list[str]:
    """Return what a command prints; nothing if it does not exist or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.splitlines() if done.returncode == 0 else []


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
