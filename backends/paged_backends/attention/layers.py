"""Layers as all components see them: reasons not to serve one, its ALiBi slopes and its sinks.

Also packages that a component can do without: found, missing or broken.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Collection, Sequence
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from paged_core.errors import error_text
from paged_core.interfaces.layer import KVCacheDtype, LayerSpec


def heads_problem(layer: LayerSpec) -> str | None:
    """Return why the numbers of heads, slopes or sinks do not match, if they do not."""
    if layer.num_heads % layer.num_kv_heads:
        return (
            f"{layer.num_heads} query heads cannot be shared evenly among "
            f"{layer.num_kv_heads} key/value heads"
        )
    for what, numbers in (("ALiBi slopes", layer.alibi_slopes), ("sinks", layer.sinks)):
        if numbers is not None and len(numbers) != layer.num_heads:
            return f"{len(numbers)} {what} for {layer.num_heads} query heads"
    return None


NO_SINKS = (
    "it has no attention sinks; set attention to torch, cpu, triton, cuda or flash_attn with fa4"
)
"""Why what lacks them does not serve a layer that has ``sinks``."""


def dtype_problem(
    layer: LayerSpec, dtypes: Collection[str], cache_dtypes: Collection[KVCacheDtype] = ()
) -> str | None:
    """Return why ``layer`` cannot be served by what computes in ``dtypes``, if so.

    Args:
        cache_dtypes: what it serves of ``kv_cache_dtype``, besides ``auto``.
    """
    if layer.dtype not in dtypes:
        computed = " and ".join(dtypes)
        return f"it computes in {computed}, and the layers are {layer.dtype}; set dtype to that"
    return cache_problem(layer, cache_dtypes)


def cache_problem(layer: LayerSpec, cache_dtypes: Collection[KVCacheDtype]) -> str | None:
    """Return why the ``kv_cache_dtype`` of ``layer`` is not served, if it is neither ``auto`` nor
    one of ``cache_dtypes``."""
    if layer.kv_cache_dtype in ("auto", *cache_dtypes):
        return None
    remedy = " or ".join(("auto", *cache_dtypes))
    return f"it has no {layer.kv_cache_dtype} cache; set kv_cache_dtype to {remedy}"


def not_on_nvidia(layer: LayerSpec) -> str:
    """Return why a layer is not served that is not on an NVIDIA GPU."""
    return f"it computes on NVIDIA GPUs, and the model is on {layer.device}"


def by_head(numbers: Sequence[float] | None, device: torch.device) -> Tensor | None:
    """Return ``alibi_slopes`` or ``sinks`` of a layer, [H] float32 on ``device``, if it has any."""
    if numbers is None:
        return None
    return torch.tensor(numbers, dtype=torch.float32, device=device)


class Unavailable(Exception):
    """A package is not installed, is too old, or cannot be imported; the message says which, and
    the command that helps."""


def function_of(
    modules: Sequence[str], name: str, *, install: str, arguments: Collection[str] = ()
) -> Callable[..., Any]:
    """Return the function or class ``name`` of the first of ``modules`` that is installed.

    Args:
        install: the command that installs the package.
        arguments: which it must have; older versions may lack them.

    Raises:
        Unavailable: there is no such function, or importing it fails.
    """
    for module in modules:
        try:
            found = getattr(import_module(module), name, None)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{module}.".startswith(f"{error.name}."):
                raise Unavailable(_broken(module, error, install)) from error
            continue
        except Exception as error:
            # an extension built for another PyTorch may raise anything
            raise Unavailable(_broken(module, error, install)) from error
        if found is not None:
            return _checked(found, arguments, f"{module}.{name}", install)
        if getattr(sys.modules[module], "__file__", None) is not None:
            raise Unavailable(f"{module} has no {name}, it is too old ({install})")
    raise Unavailable(f"not installed ({install})")


def _checked(
    function: Callable[..., Any], arguments: Collection[str], name: str, install: str
) -> Callable[..., Any]:
    known = inspect.signature(function).parameters
    missing = [argument for argument in arguments if argument not in known]
    if missing:
        raise Unavailable(f"{name} has no {' and no '.join(missing)}, it is too old ({install})")
    return function


def _broken(module: str, error: Exception, install: str) -> str:
    problem = error_text(error).partition("\n")[0]
    return (
        f"{module} is installed and cannot be imported, {problem:.200}: if it was built for "
        f"another PyTorch, install it again ({install})"
    )
