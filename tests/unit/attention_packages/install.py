"""Puts stand-ins in the place of packages for GPUs, so that they are imported as those are."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest

from unit.attention_packages import (
    flash_attn_2,
    flash_attn_3,
    flash_attn_4,
    flashinfer,
    torch_varlen,
)

MODULES: dict[str, dict[str, ModuleType]] = {
    "fa2": {"flash_attn": flash_attn_2},
    "fa3": {"flash_attn_interface": flash_attn_3},
    "fa4": {"flash_attn.cute": flash_attn_4},
    "torch": {"torch.nn.attention.varlen": torch_varlen},
    "flashinfer": {"flashinfer": flashinfer},
}
"""By the name of a provider, its modules."""
ALL = ("flash_attn", "flash_attn_interface", "flash_attn_3", "flashinfer", "flashinfer_jit_cache")


def install(patch: pytest.MonkeyPatch, *names: str, capability: tuple[int, int] = (9, 0)) -> None:
    """Install the stand-ins of these providers and no others, on a GPU of ``capability`` that is
    called ``cpu``; with FlashInfer, its compiled kernels."""
    for module in ALL:
        patch.setitem(sys.modules, module, None)
    patch.delitem(sys.modules, "flash_attn.cute", raising=False)
    old = ModuleType("torch.nn.attention.varlen")
    old.__file__, old.varlen_attn = __file__, lambda query, key, value: query  # type: ignore[attr-defined]
    patch.setitem(sys.modules, "torch.nn.attention.varlen", old)
    for name in names:
        for path, module in MODULES[name].items():
            patch.setitem(sys.modules, path, module)
    if "fa4" in names and "fa2" not in names:
        patch.setitem(sys.modules, "flash_attn", ModuleType("flash_attn"))  # a bare namespace
    if "flashinfer" in names:
        compiled = ModuleType("flashinfer_jit_cache")
        compiled.__spec__ = ModuleSpec("flashinfer_jit_cache", None)
        patch.setitem(sys.modules, "flashinfer_jit_cache", compiled)
    folder = "paged_backends.attention"
    for path in ("flash_attention", "flashinfer_attention"):
        patch.setattr(f"{folder}.{path}.compute_capability", lambda device: capability)
        patch.setattr(f"{folder}.{path}.gpu_problem", lambda: None)
