"""From a variant of the kernels to the code on a device: compilers are tried in order."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from paged_backends.kernels.build import CannotCompile, Compiler
from paged_backends.kernels.cuda.driver import Context, GpuModule
from paged_backends.kernels.cuda.kernel import KernelError
from paged_backends.kernels.cuda.nvcc import Nvcc
from paged_backends.kernels.cuda.nvrtc import Nvrtc
from paged_backends.kernels.cuda.variant import Variant
from paged_backends.kernels.library_cache import library
from paged_core.log import get_logger

_log = get_logger()

_REMEDY = (
    "install NVRTC (`pip install nvidia-cuda-nvrtc nvidia-cuda-runtime`) or set CUDA_HOME to a "
    "CUDA toolkit"
)


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
    """Return the kernels on a device, compiled first if they are not in the cache.

    What a compiler makes and the driver refuses, as an old driver does with what a newer nvcc made,
    is made by the next one, with a warning.

    Raises:
        CannotCompile: no compiler makes what the driver takes.
    """
    build = variant.cubin(architecture)
    candidates = [compilers] if isinstance(compilers, CannotCompile) else list(compilers)
    reasons = []
    for candidate in candidates:
        try:
            return GpuModule(context, library(build, candidate).read_bytes(), build.name)
        except (CannotCompile, KernelError) as error:
            reasons.append(str(error))
            if candidate is not candidates[-1]:
                _log.warning("cuda_compiler_passed_over", reason=str(error))
    raise CannotCompile("; ".join(reasons))
