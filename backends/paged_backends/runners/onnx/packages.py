"""ONNX Runtime's packages: which are installed, whether they can be imported, and compute on CUDA.

``onnxruntime`` and ``onnxruntime-gpu`` install into one folder: the last one installed overwrites
the other, and removing either removes files of both.
"""

from __future__ import annotations

from contextlib import redirect_stdout, suppress
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from io import StringIO

from paged_backends.checkpoint.json_file import one_line
from paged_backends.kernels.nvidia import gpu_problem

CPU_PACKAGE, GPU_PACKAGE = "onnxruntime", "onnxruntime-gpu"
CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
"""Where a session computes."""

_INSTALL = "`pip uninstall -y onnxruntime onnxruntime-gpu && pip install 'paged-core[{}]'`"
_INSTALL_FOR_GPU = _INSTALL.format("onnx-gpu")
_COPY = '<ir_version: 10, opset_import: ["": 21]> g (float[1] x) => (float[1] y) {y = Identity(x)}'


def unavailable_reason() -> str | None:
    """Return why ONNX Runtime cannot be used, and the command that helps, or ``None``."""
    found = installed()
    extra = "onnx" if gpu_problem() else "onnx-gpu"
    if not found or find_spec("onnx") is None:
        missing = "onnx" if found else "onnxruntime"
        extra = "onnx-gpu" if GPU_PACKAGE in found else "onnx" if CPU_PACKAGE in found else extra
        return f"{missing} is not installed: `pip install 'paged-core[{extra}]'`"
    again = _INSTALL.format(extra)
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
        return f"{type(error).__name__}: {one_line(error, 300)}"
    return None


def details() -> str:
    """Return which package serves, and on what."""
    ((package, number),) = installed().items()
    reason = gpu_problem()
    if reason is not None:
        return f"{package} {number}, on the CPU"
    if package == CPU_PACKAGE:
        return f"{package} {number}, on the CPU alone; for the GPU: {_INSTALL_FOR_GPU}"
    problem = cuda_problem()
    return f"{package} {number}, on " + ("CUDA" if problem is None else f"the CPU alone: {problem}")


def installed() -> dict[str, str]:
    """Return the version of each package of ONNX Runtime."""
    found = {}
    for package in (CPU_PACKAGE, GPU_PACKAGE):
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def cuda_problem() -> str | None:
    """Return why sessions do not compute on CUDA, and the command that helps, or ``None``.

    A package lists what it was built with. Whether CUDA's libraries are found shows when a session
    is made: without them it falls back to the CPU.
    """
    import onnxruntime
    from onnx.parser import parse_model

    found = f"onnxruntime {onnxruntime.__version__}"
    if CUDA not in onnxruntime.get_available_providers():
        return f"{found} was built without CUDA; {_INSTALL_FOR_GPU}"
    with redirect_stdout(StringIO()):  # it prints what the session shows, too
        onnxruntime.preload_dlls()  # CUDA's libraries, where pip installs them
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # it would log what is returned here
    model = parse_model(_COPY).SerializeToString()
    session = onnxruntime.InferenceSession(model, options, providers=[CUDA, CPU])
    if CUDA not in session.get_providers():
        return f"{found} does not find the CUDA libraries that it was built for; {_INSTALL_FOR_GPU}"
    return None
