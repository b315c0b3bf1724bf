"""Which of ONNX Runtime's packages are installed, and whether they can be imported.

``onnxruntime`` and ``onnxruntime-gpu`` install into one folder: the last one installed overwrites
the other, and removing either removes files of both.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from paged_backends.kernels.nvidia import gpu_problem

CPU_PACKAGE, GPU_PACKAGE = "onnxruntime", "onnxruntime-gpu"

INSTALL_FOR_GPU = (
    "`pip uninstall -y onnxruntime onnxruntime-gpu && pip install 'paged-core[onnx-gpu]'`"
)
_INSTALL_FOR_CPU = (
    "`pip uninstall -y onnxruntime onnxruntime-gpu && pip install 'paged-core[onnx]'`"
)


def obstacle() -> str | None:
    """Return why ONNX Runtime cannot be used, and the command that helps, or ``None``."""
    found = installed()
    extra = "onnx" if gpu_problem() else "onnx-gpu"
    if not found or find_spec("onnx") is None:
        missing = "onnx" if found else "onnxruntime"
        extra = "onnx-gpu" if GPU_PACKAGE in found else "onnx" if CPU_PACKAGE in found else extra
        return f"{missing} is not installed: `pip install 'paged-core[{extra}]'`"
    again = INSTALL_FOR_GPU if extra == "onnx-gpu" else _INSTALL_FOR_CPU
    if len(found) > 1:
        return f"{' and '.join(found)} are both installed, into one folder; install one: {again}"
    spec = find_spec("onnxruntime")
    if spec is None or spec.origin is None:  # a folder without its __init__.py
        return f"files of {next(iter(found))} are missing; install it again: {again}"
    onnx_again = f"`pip uninstall -y onnx && pip install 'paged-core[{extra}]'`"
    for module, command in (("onnx", onnx_again), ("onnxruntime", again)):
        problem = _import_problem(module)
        if problem is not None:
            return (
                f"{module} is installed but cannot be imported: {problem}; reinstall it: {command}"
            )
    return None


def _import_problem(module: str) -> str | None:
    try:
        import_module(module)
    except Exception as error:  # noqa: BLE001 - what a broken package raises is not known
        return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    return None


def details() -> str:
    """Return which package serves, and on what."""
    ((package, number),) = installed().items()
    reason = gpu_problem()
    if reason is not None:
        return f"{package} {number}, on the CPU"
    if package == CPU_PACKAGE:
        return f"{package} {number}, on the CPU alone; for the GPU: {INSTALL_FOR_GPU}"
    from paged_backends.runners.onnx.providers import cuda_problem

    problem = cuda_problem()
    return f"{package} {number}, on " + ("CUDA" if problem is None else f"the CPU alone: {problem}")


def installed() -> dict[str, str]:
    """Return the version of each package of ONNX Runtime."""
    found = {}
    for package in (CPU_PACKAGE, GPU_PACKAGE):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
