"""Stands in for packages that attend on GPUs: notes what it is told, and computes nothing.

A call is refused where a package would refuse it by its signature, or by what all of them ask of
tensors. What a package is told is asserted by the tests; what it makes of it is asked on GPUs, by
tests/gpu/test_attention.py.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from inspect import Parameter, Signature
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

FUNCTIONS: Mapping[str, Mapping[str, Mapping[str, str]]] = {
    "fa2": {
        "flash_attn": {
            "flash_attn_varlen_func": "q k v cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k "
            "softmax_scale causal window_size softcap alibi_slopes block_table",
            "flash_attn_with_kvcache": "q k v cache_seqlens block_table softmax_scale causal "
            "window_size softcap alibi_slopes",
        }
    },
    "fa3": {
        "flash_attn_interface": {
            "flash_attn_with_kvcache": "q k v cache_seqlens page_table cu_seqlens_q max_seqlen_q "
            "softmax_scale causal window_size softcap num_splits",
        }
    },
    "fa4": {
        "flash_attn.cute": {
            "flash_attn_varlen_func": "q k v cu_seqlens_q max_seqlen_q max_seqlen_k seqused_k "
            "page_table softmax_scale causal window_size softcap learnable_sink",
        }
    },
    "torch": {
        "torch.nn.attention.varlen": {
            "varlen_attn": "q k v cu_seq_q cu_seq_k max_q max_k scale window_size enable_gqa "
            "seqused_k block_table num_splits",
        }
    },
}
"""By provider, module and function: the arguments of flash-attn 2.8.3, of flash-attn 3, of
flash-attn-4 4.0.0b36 and of PyTorch 2.13, as far as inference over a paged cache needs them."""
PAGES = {"fa2": 256, "fa3": 16, "fa4": 16, "torch": 256}
"""Tokens of a page that each takes."""
_INTEGERS = ("cu_", "cache_seqlens", "seqused", "page_table", "block_table")
_LISTED = (*_INTEGERS, "alibi_slopes", "learnable_sink")
_MODULES = ("flash_attn", "flash_attn_interface", "flash_attn_3", "flash_attn_config", "flashinfer")


@dataclass(frozen=True)
class Call:
    """A call."""

    function: str
    given: dict[str, Any]
    """By parameter; tensors of integers and slopes as lists of what they held then."""

    @property
    def options(self) -> dict[str, Any]:
        """All but queries, keys and values."""
        return {name: value for name, value in self.given.items() if name not in "qkv"}


@dataclass
class Installed:
    """The stand-ins that are installed."""

    calls: list[Call]
    """In their order."""
    modules: dict[str, Any]


def noting(name: str, parameters: str, calls: list[Call]) -> Callable[..., Any]:
    """Return a function of these parameters that notes its calls, and answers with its queries."""
    kind = Parameter.POSITIONAL_OR_KEYWORD
    signature = Signature([Parameter(one, kind, default=None) for one in parameters.split()])

    def called(*args: Any, **options: Any) -> Any:
        given = dict(signature.bind(*args, **options).arguments)
        with torch._C.DisableTorchFunction():  # to read them makes no step wait
            _check(given)
            kept = {
                name: value.tolist() if name.startswith(_LISTED) and value is not None else value
                for name, value in given.items()
            }
        calls.append(Call(name, kept))
        out = torch.zeros_like(given["q"], memory_format=torch.contiguous_format)
        return (out, None) if "seqused_k" in given and "page_table" in given else out

    called.__signature__ = signature  # type: ignore[attr-defined]
    return called


def _check(given: Mapping[str, Any]) -> None:
    """Refuse what all packages refuse."""
    query, keys, values = (given[name] for name in "qkv")
    assert query.dtype in (torch.float16, torch.bfloat16)
    assert query.dtype == keys.dtype == values.dtype
    for rows in (query, keys, values):
        assert rows.stride(-1) == 1
        assert all(step % 8 == 0 for step in rows.stride()[:-1]), "no multiple of 16 bytes"
    slopes = given.get("alibi_slopes")
    assert slopes is None or slopes.dtype is torch.float32
    for name, value in given.items():
        if name.startswith(_INTEGERS):
            assert isinstance(value, Tensor), name
            assert (value.dtype, value.stride(-1)) == (torch.int32, 1), name


class _Wrapper:
    """A wrapper of FlashInfer 0.7.2."""

    calls: list[Call]
    kind: str

    def __init__(self, workspace: Tensor, layout: str, **options: Any) -> None:
        assert (workspace.dtype, layout) == (torch.uint8, "HND")
        self.device = workspace.device
        self.calls.append(Call(f"{self.kind} made", options))

    def plan(self, *given: Any, **options: Any) -> None:
        runs = [one.tolist() for one in given if isinstance(one, Tensor)]
        shape = [one for one in given if not isinstance(one, Tensor)]
        for one in given:
            if isinstance(one, Tensor):
                assert (one.dtype, one.device.type) == (torch.int32, "cpu"), "plan would wait"
        self.calls.append(Call(f"{self.kind} planned", {"runs": runs, "shape": shape, **options}))

    def run(self, q: Tensor, cache: Tensor) -> Tensor:
        assert q.is_contiguous()
        assert q.dtype == cache.dtype
        self.calls.append(Call(f"{self.kind} run", {"q": q, "cache": cache}))
        return torch.zeros_like(q)


def install(
    patch: pytest.MonkeyPatch, *names: str, capability: tuple[int, int] = (9, 0)
) -> Installed:
    """Install the stand-ins of these providers, or ``flashinfer``, and no others, on a GPU of
    ``capability`` that is called ``cpu``; with FlashInfer, its compiled kernels."""
    found = Installed([], {})
    for absent in (*_MODULES, "flashinfer_jit_cache"):
        patch.setitem(sys.modules, absent, None)
    patch.delitem(sys.modules, "flash_attn.cute", raising=False)
    old = ModuleType("torch.nn.attention.varlen")
    old.__file__, old.varlen_attn = __file__, lambda query, key, value: query  # type: ignore[attr-defined]
    patch.setitem(sys.modules, "torch.nn.attention.varlen", old)
    for name in names:
        for path, functions in FUNCTIONS.get(name, {}).items():
            module: Any = ModuleType(path)
            module.__file__ = __file__
            found.modules[name] = module
            for function, parameters in functions.items():
                setattr(module, function, noting(function, parameters, found.calls))
            patch.setitem(sys.modules, path, module)
    if "fa4" in names and "fa2" not in names:
        patch.setitem(sys.modules, "flash_attn", ModuleType("flash_attn"))  # a bare namespace
    if "flashinfer" in names:
        flashinfer: Any = ModuleType("flashinfer")
        for kind in ("Prefill", "Decode"):
            of = {"calls": found.calls, "kind": kind}
            made = type(kind, (_Wrapper,), of)
            setattr(flashinfer, f"Batch{kind}WithPagedKVCacheWrapper", made)
        patch.setitem(sys.modules, "flashinfer", flashinfer)
        compiled = ModuleType("flashinfer_jit_cache")
        compiled.__spec__ = ModuleSpec("flashinfer_jit_cache", None)
        patch.setitem(sys.modules, "flashinfer_jit_cache", compiled)
    folder = "paged_backends.attention"
    for path in ("flash_attention", "flashinfer_attention"):
        patch.setattr(f"{folder}.{path}.compute_capability", lambda device: capability)
        patch.setattr(f"{folder}.{path}.gpu_problem", lambda: None)
    return found
