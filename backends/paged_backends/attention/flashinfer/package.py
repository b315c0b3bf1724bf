"""The package FlashInfer, and whether it can be used here."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from paged_backends.attention.optional_import import Unavailable, function_of
from paged_backends.kernels.cuda.toolkit import candidates
from paged_backends.kernels.nvidia import gpu_problem

_INSTALL = "pip install flashinfer-python"


def wrapper_class(name: str) -> Callable[..., Any]:
    """Return a class of FlashInfer.

    Raises:
        Unavailable: it is not installed, too old, or cannot be imported.
    """
    return function_of(("flashinfer",), name, install=_INSTALL)


def package_problem() -> str | None:
    """Return why FlashInfer cannot be used, apart from the GPU, or ``None``."""
    try:
        wrapper_class("BatchPrefillWithPagedKVCacheWrapper")
        wrapper_class("BatchDecodeWithPagedKVCacheWrapper")
    except Unavailable as error:
        return str(error)
    return _compiler_problem()


def obstacle() -> str | None:
    """Return why it cannot be used here, or ``None``; without a GPU it is not imported."""
    return gpu_problem() or package_problem()


def _compiler_problem() -> str | None:
    """Return why its kernels cannot be had: it compiles them on first use, by nvcc."""
    if any(candidates()) or find_spec("flashinfer_jit_cache") is not None:
        return None
    return (
        "it compiles its kernels on first use, and there is no nvcc; install the CUDA toolkit and "
        "set CUDA_HOME, or install flashinfer-jit-cache, which has them compiled"
    )
