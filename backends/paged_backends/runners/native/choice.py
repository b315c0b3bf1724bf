"""The operations that a model is computed with: our own kernels, plain PyTorch, or compiled layers.

Options and the device decide.
"""

# ruff: noqa: N803 - the shape of an array is the upper-case end of its name
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from paged_backends.kernels.build import CannotCompile
from paged_backends.kernels.cpu.availability import unavailable_reason
from paged_backends.kernels.cpu.compiler import NoSuchInstructions, find_compiler
from paged_backends.kernels.cpu.tensor_kernels import Kernels
from paged_backends.kernels.triton.availability import INTERPRETER, is_interpreted
from paged_backends.runners.native.cpu_layers import FloatProducts, KernelOps, fits
from paged_backends.runners.native.decoder import Layer, Linear, Rotaries, SummedLinear
from paged_backends.runners.native.ops import Ops
from paged_backends.runners.settings import NativeSettings
from paged_core.errors import SettingsError
from paged_core.log import get_logger

if TYPE_CHECKING:
    from paged_core.interfaces.runner import Attend

log = get_logger()


def choose_ops(
    options: NativeSettings, dtype: torch.dtype, device: torch.device, *, is_exact: bool = False
) -> Ops:
    """Return operations over the kernels for ``device``, or over PyTorch if they are missing.

    Args:
        is_exact: quantised weights are multiplied in floats, unless options say otherwise.

    Raises:
        SettingsError: the options ask for what cannot be had here.
    """
    if is_exact and options.quantized_products == "auto":
        options = options.model_copy(update={"quantized_products": "float"})
    ops = _ops(options, dtype, device)
    wanted, found = options.quantized_products, ops.quantized_products or "float"
    if wanted not in ("auto", found):
        needed = "bfloat16 and AMX" if wanted == "widened" else "our kernels for CPUs"
        raise SettingsError(
            f"runner.quantized_products: {wanted} needs {needed}; here, with {dtype} on {device}, "
            f"products with quantised weights are {found}; set it to auto"
        )
    return ops


def _ops(options: NativeSettings, dtype: torch.dtype, device: torch.device) -> Ops:
    chosen = options.kernels
    if options.compile:
        if chosen not in ("auto", "off"):
            raise SettingsError(
                "runner.compile compiles PyTorch's own operations, but runner.kernels asks for "
                f"{chosen}; leave one of them out"
            )
        return Ops(computes_quantized=False)
    if chosen == "off":
        return Ops(computes_quantized=device.type == "cpu")
    if chosen == "triton" or device.type == "cuda":
        return _triton_ops(device)
    if not fits(dtype, device):
        return Ops(computes_quantized=device.type == "cpu")
    reason = unavailable_reason()
    if reason is None:
        try:
            is_float = options.quantized_products == "float"
            return (FloatProducts if is_float else KernelOps)(_kernels(options, dtype))
        except NoSuchInstructions as error:
            raise SettingsError(f"runner.kernels: {error}") from error
        except CannotCompile as error:
            reason = str(error)
    return _plain(reason, computes_quantized=True)


def _kernels(options: NativeSettings, dtype: torch.dtype) -> Kernels:
    if dtype is not torch.bfloat16 or options.quantized_products in ("integer", "float"):
        return Kernels.load(options.kernels, quantized_products="integer")
    return Kernels.load(options.kernels)


def _triton_ops(device: torch.device) -> Ops:
    if find_spec("triton") is None:
        reason = "triton is not installed: pip install 'paged-core[gpu]'"
        return _plain(reason, computes_quantized=device.type == "cpu")
    if device.type != "cuda" and not is_interpreted():
        raise SettingsError(
            f"runner.kernels: triton needs device: cuda, and this is {device}; in tests, "
            f"{INTERPRETER}=1 in the environment executes the kernels on a CPU"
        )
    from paged_backends.runners.native.triton_ops import TritonOps

    return TritonOps()


def _plain(reason: str, *, computes_quantized: bool) -> Ops:
    log.warning("kernels_missing", reason=reason, instead="plain PyTorch, more slowly")
    return Ops(computes_quantized=computes_quantized)


# ---------------------------------------------------------------------- compiled layers


def compile_layers(layers: Sequence[Layer], device: torch.device) -> list[CompiledLayer]:
    """Return what computes these layers.

    Raises:
        SettingsError: ``torch.compile`` lacks what it needs here.
    """
    reason = _compile_problem(device)
    if reason is not None:
        raise SettingsError(f"runner.compile: {reason}; leave it out")
    return [CompiledLayer(_with_sums_as_they_are(layer)) for layer in layers]


def _with_sums_as_they_are(layer: Layer) -> Layer:
    """Return a layer whose sums over the ranks are called, not traced: a communicator has state."""

    disable: Any = torch.compiler.disable  # untyped

    def called(linear: Linear) -> Linear:
        if not isinstance(linear, SummedLinear):
            return linear
        return replace(linear, all_reduce=disable(linear.all_reduce))

    attention, mlp = layer.attention, layer.mlp
    return replace(
        layer,
        attention=replace(attention, output=called(attention.output)),
        mlp=replace(mlp, down=called(mlp.down)),
    )


def _compile_problem(device: torch.device) -> str | None:
    """Say why layers cannot be compiled for ``device``, or return ``None``."""
    if device.type == "cuda":
        missing = find_spec("triton") is None
        return "triton is not installed: pip install 'paged-core[gpu]'" if missing else None
    compiler = find_compiler()
    return str(compiler) if isinstance(compiler, CannotCompile) else None


class CompiledLayer:
    """Computes a layer. Its code is compiled when it is first called: once for all layers of the
    same shapes, again for the second number of tokens, and then for any."""

    def __init__(self, layer: Layer) -> None:
        self._attention = layer.attention
        self._begin = torch.compile(layer.begin)
        self._finish = torch.compile(layer.finish)

    def __call__(self, hidden_TE: Tensor, rotaries: Rotaries, attend: Attend) -> Tensor:
        """See :class:`~paged_backends.runners.native.decoder.RunsLayer`."""
        query, key, value = self._begin(hidden_TE, rotaries[self._attention.config.rope])
        return self._finish(attend(self._attention.index, query, key, value), hidden_TE)
