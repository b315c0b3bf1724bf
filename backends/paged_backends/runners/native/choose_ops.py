"""Which operations the runner computes with, by its options and its device."""

from __future__ import annotations

from importlib.util import find_spec

import torch

from paged_backends.kernels.build import CannotCompile
from paged_backends.kernels.cpu.availability import unavailable_reason
from paged_backends.kernels.cpu.compiler import NoSuchInstructions
from paged_backends.kernels.cpu.tensor_kernels import Kernels
from paged_backends.kernels.triton.availability import INTERPRETER, is_interpreted
from paged_backends.runners.native.kernel_ops import KernelOps, fits
from paged_backends.runners.native.ops import Ops, TorchOps
from paged_backends.runners.settings import NativeSettings
from paged_core.errors import SettingsError
from paged_core.log import get_logger

log = get_logger()


def choose_ops(options: NativeSettings, dtype: torch.dtype, device: torch.device) -> Ops:
    """Return operations over the kernels for ``device``, or over PyTorch if they are missing.

    Raises:
        SettingsError: the options ask for what cannot be had here.
    """
    ops = _ops(options, dtype, device)
    wanted, found = options.quantized_products, ops.quantized_products
    if wanted not in ("auto", found):
        needed = "bfloat16 and AMX" if wanted == "widened" else "our kernels for CPUs"
        raise SettingsError(
            f"runner.quantized_products: {wanted} needs {needed}; with {dtype} on {device} here, "
            f"quantised weights are multiplied {f'as {found}' if found else 'as floats'}; "
            "set it to auto"
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
        return TorchOps(computes_quantized=False)
    if chosen == "off":
        return TorchOps(computes_quantized=device.type == "cpu")
    if chosen == "triton" or device.type == "cuda":
        return _triton_ops(device)
    if not fits(dtype, device):
        return TorchOps(computes_quantized=device.type == "cpu")
    reason = unavailable_reason()
    if reason is None:
        try:
            return KernelOps(_kernels(options, dtype))
        except NoSuchInstructions as error:
            raise SettingsError(f"runner.kernels: {error}") from error
        except CannotCompile as error:
            reason = str(error)
    return _plain(reason, computes_quantized=True)


def _kernels(options: NativeSettings, dtype: torch.dtype) -> Kernels:
    if dtype is not torch.bfloat16 or options.quantized_products == "integer":
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
    return TorchOps(computes_quantized=computes_quantized)
