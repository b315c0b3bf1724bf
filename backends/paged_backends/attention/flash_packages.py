"""Packages with flash attention over a paged cache, as one adapter and a table of differences.

Read in flash-attn 2.8.3 (``flash_attn``), in the folder ``hopper`` of its repository (flash-attn
3), in flash-attn-4 4.0.0b36 (``flash_attn.cute``), and in PyTorch 2.12, which contains flash-attn 2
(``torch.nn.attention.varlen``).

Shapes: T tokens, S sequences, H query heads, K key/value heads, D head_dim; B blocks of P tokens.
"""

# ruff: noqa: N803, N806, N815 - the shape of an array is the upper-case end of its name
from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from paged_backends.attention.layers import (
    NO_SINKS,
    Unavailable,
    dtype_problem,
    function_of,
    heads_problem,
)
from paged_backends.attention.step import KernelBatch
from paged_backends.kernels.nvidia import capability_problem, dotted
from paged_core.interfaces.attention import AttentionBatch
from paged_core.interfaces.layer import LayerSpec

_LACKS = {
    "soft_cap": "it has no soft cap",
    "alibi_slopes": "it has no ALiBi",
    "sinks": NO_SINKS,
}

Capability = tuple[int, int]
"""Compute capability of a GPU: (9, 0) is Hopper's."""


class Sequences(KernelBatch):
    """The sequences of one step's batch."""

    def __init__(self, batch: AttentionBatch) -> None:
        super().__init__(batch)
        count = self.num_sequences + 1
        self.ends = torch.zeros(count, dtype=torch.int32, device=self.lengths.device)
        """[S + 1]: running sums of :attr:`lengths`."""
        self.refresh()

    def refresh(self) -> None:
        """Add the lengths up again, after they changed in place; waits for nothing."""
        torch.cumsum(self.lengths, 0, dtype=torch.int32, out=self.ends[1:])


@dataclass(frozen=True, slots=True)
class Request:
    """Attention that a package is asked for."""

    layer: LayerSpec
    slopes_H: Tensor | None
    sinks_H: Tensor | None
    sequences: Sequences
    deterministic: bool

    @property
    def left(self) -> int:
        """Keys before its own that a token sees; -1: all."""
        window = self.layer.sliding_window
        return -1 if window is None else window - 1

    @property
    def window(self) -> tuple[int, int]:
        """The window to the left, whose right end is open where all keys are seen."""
        return self.left, -1 if self.left < 0 else 0

    @property
    def soft_cap(self) -> float:
        """0.0: there is none."""
        return self.layer.soft_cap or 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """Differences of one package from the others."""

    name: str
    """In the option ``provider``."""
    title: str
    """In messages."""
    modules: tuple[str, ...]
    """Where its function may be, the first that is installed."""
    function: str
    arguments: tuple[str, ...]
    """Which the function must have; older versions lack some."""
    install: str
    """The command that installs it."""
    options: Callable[[Request], Mapping[str, Any]]
    """Arguments of the function beside queries, keys and values."""
    decode: str | None = None
    """The function for steps that decode only, which splits long sequences."""
    lacks: tuple[str, ...] = ()
    """Fields of a layer that it does not know."""
    generations: tuple[int, ...] = ()
    """First numbers of the compute capabilities that it runs on; none: Ampere and newer."""
    runs_on: str = ""
    """The same, in messages."""
    head_dims: Mapping[int, int] = field(default_factory=dict)
    """The largest head dimension on some generations; 256 on the others."""
    short_pages: bool = False
    """Takes pages below 64 tokens, and otherwise multiples of 256."""
    windows_vary: bool = False
    """Results of layers with a sliding window depend on the rest of the batch, bit for bit."""
    records_build: bool = False
    """The package records what was left out when it was built."""


class Provider:
    """A package as an adapter of it, with what it serves and why not."""

    def __init__(self, package: Package, *, deterministic: bool) -> None:
        """``deterministic``: results do not depend, bit for bit, on the rest of the batch."""
        self.package = package
        self._deterministic = deterministic

    @cached_property
    def _function(self) -> Callable[..., Any]:
        package = self.package
        return function_of(
            package.modules, package.function, install=package.install, arguments=package.arguments
        )

    @cached_property
    def _decode(self) -> Callable[..., Any]:
        package = self.package
        return function_of(package.modules, package.decode or "", install=package.install)

    def check(self, layer: LayerSpec, capability: Capability) -> str | None:
        """Return why it cannot serve ``layer`` on a GPU of this compute capability, or ``None``."""
        package = self.package
        limit = (
            self._window_problem(layer)
            or self._gpu_problem(capability)
            or dtype_problem(layer, ("bfloat16", "float16"))
            or heads_problem(layer)
            or self._feature_problem(layer)
            or _head_dim_problem(layer.head_dim, package.head_dims.get(capability[0], 256))
        )
        if limit is not None:
            return limit
        size_problem = _shorter_than_a_tile if package.short_pages else _multiple_of_256
        reasons = [self.unavailable_reason(), size_problem(layer.block_size)]
        whole = ", and ".join(filter(None, reasons))
        return whole or (_left_out_of_build(layer) if package.records_build else None)

    def unavailable_reason(self) -> str | None:
        """Return why the package cannot be used, or ``None``."""
        try:
            _ = self._function
        except Unavailable as error:
            return str(error)
        return None

    def attend(
        self,
        layer: LayerSpec,
        query_THD: Tensor,
        keys_BPKD: Tensor,
        values_BPKD: Tensor,
        slopes_H: Tensor | None,
        sinks_H: Tensor | None,
        sequences: Sequences,
    ) -> Tensor:
        """Return the attention [T, H, D] of the queries over the cache, which holds their keys."""
        request = Request(layer, slopes_H, sinks_H, sequences, self._deterministic)
        single = sequences.max_query_len == 1 and not self._deterministic
        if self.package.decode is not None and single:
            out_S1HD: Tensor = self._decode(
                query_THD[:, None],
                keys_BPKD,
                values_BPKD,
                cache_seqlens=sequences.lengths,
                window_size=request.window,
                **_flash_attn_2(request),
            )
            return out_S1HD[:, 0]
        options = self.package.options(request)
        result = self._function(query_THD, keys_BPKD, values_BPKD, **options)
        # versions differ in whether the sums of the softmax come with it
        out_THD: Tensor = result[0] if isinstance(result, tuple) else result
        return out_THD

    def _window_problem(self, layer: LayerSpec) -> str | None:
        # the tiles of a window that no sequence of the batch exceeds are those of no window
        if self._deterministic and self.package.windows_vary and layer.sliding_window is not None:
            return (
                "its kernel for a sliding window depends on the rest of the batch, which "
                "deterministic rules out"
            )
        return None

    def _gpu_problem(self, capability: Capability) -> str | None:
        package = self.package
        if package.generations and capability[0] not in package.generations:
            return f"{package.runs_on}, and the GPU has {dotted(capability)}"
        return capability_problem(capability)

    def _feature_problem(self, layer: LayerSpec) -> str | None:
        lacking = [field for field in self.package.lacks if getattr(layer, field) is not None]
        return _LACKS[lacking[0]] if lacking else None


def providers(name: str, *, deterministic: bool) -> list[Provider]:
    """Return the provider called ``name``, or all of them for ``auto``, in the order of trial."""
    return [
        Provider(package, deterministic=deterministic)
        for package in PACKAGES
        if name in ("auto", package.name)
    ]


# ---------------------------------------------------------------------- what they are told


def _flash_attn_2(request: Request) -> Mapping[str, Any]:
    """Options of both functions of flash-attn 2."""
    return {
        "block_table": request.sequences.tables,
        "softmax_scale": request.layer.scale,
        "causal": True,
        "softcap": request.soft_cap,
        "alibi_slopes": request.slopes_H,
    }


def _fa2_options(request: Request) -> Mapping[str, Any]:
    sequences = request.sequences
    return {
        **_flash_attn_2(request),
        "cu_seqlens_q": sequences.starts,
        "cu_seqlens_k": sequences.ends,
        "max_seqlen_q": sequences.max_query_len,
        "max_seqlen_k": sequences.max_seq_len,
        # a right end of 0 keeps a batch of single queries from being packed by group and split,
        # so that every batch is computed by the same kernel; else the end is open
        "window_size": (request.left, 0) if request.deterministic else request.window,
    }


def _fa3_options(request: Request) -> Mapping[str, Any]:
    sequences, deterministic = request.sequences, request.deterministic
    return {
        "cache_seqlens": sequences.lengths,
        "page_table": sequences.tables,
        "cu_seqlens_q": sequences.starts,
        # single queries are computed by another kernel, whose tiles differ
        "max_seqlen_q": max(sequences.max_query_len, 2 if deterministic else 1),
        "softmax_scale": request.layer.scale,
        "causal": True,
        "window_size": request.window,
        "softcap": request.soft_cap,
        "num_splits": 1 if deterministic else 0,
    }


def _fa4_options(request: Request) -> Mapping[str, Any]:
    sequences, sees_all = request.sequences, request.left < 0
    return {
        "cu_seqlens_q": sequences.starts,
        "max_seqlen_q": sequences.max_query_len,
        "max_seqlen_k": sequences.max_seq_len,
        "seqused_k": sequences.lengths,
        "page_table": sequences.tables,
        "softmax_scale": request.layer.scale,
        "causal": sees_all,
        "window_size": (None, None) if sees_all else (request.left, 0),
        "softcap": request.soft_cap,
        "learnable_sink": request.sinks_H,
    }


def _torch_options(request: Request) -> Mapping[str, Any]:
    layer, sequences = request.layer, request.sequences
    # a single query sees all keys; without an end, its group is packed into one tile
    is_open = sequences.max_query_len == 1 and not request.deterministic
    return {
        "cu_seq_q": sequences.starts,
        "cu_seq_k": sequences.ends,
        "max_q": sequences.max_query_len,
        "max_k": sequences.max_seq_len,
        "scale": layer.scale,
        "window_size": request.window if is_open else (request.left, 0),
        "enable_gqa": layer.num_heads != layer.num_kv_heads,
        "seqused_k": sequences.lengths,
        "block_table": sequences.tables,
        "num_splits": 1 if request.deterministic else None,
    }


# ---------------------------------------------------------------------- what they do not serve


def _head_dim_problem(head_dim: int, most: int) -> str | None:
    if head_dim % 8 or head_dim > most:
        return f"it takes head dimensions that are multiples of 8 up to {most}, not {head_dim}"
    return None


def _multiple_of_256(block_size: int) -> str | None:
    if block_size % 256:
        return f"its pages are multiples of 256 tokens: set block_size to 256, not {block_size}"
    return None


def _shorter_than_a_tile(block_size: int) -> str | None:
    """Return why a page may be loaded whole, or ``None``.

    A tile of keys has 64 tokens at least. Where a page holds whole tiles, it is loaded by TMA with
    the rows behind the last token; their weight is 0, and 0 times a NaN that another sequence left
    there is NaN. Rows of shorter pages are loaded one by one, and zeros for those behind the last.
    """
    if block_size >= 64:
        return (
            "it may load pages of 64 tokens and more whole, where a NaN that another sequence "
            f"left would show: set block_size to 16 or 32, not {block_size}"
        )
    return None


def _left_out_of_build(layer: LayerSpec) -> str | None:
    """Return what was left out when flash-attn 3 was built, as its own record says, if any."""
    flags = _build_flags()
    needed = {
        "PAGEDKV": "paged caches",
        "VARLEN": "sequences of different lengths",
        "SOFTCAP": layer.soft_cap is not None and "soft caps",
        "LOCAL": layer.sliding_window is not None and "sliding windows",
        "FP16": layer.dtype == "float16" and "float16",
    }
    for flag, what in needed.items():
        if what and flags.get(f"FLASHATTENTION_DISABLE_{flag}"):
            return f"its build leaves out {what}; build it without that option"
    return None


def _build_flags() -> Mapping[str, Any]:
    """Return the options that it was built with, by name; none are known of older versions."""
    for module in ("flash_attn_config", "flash_attn_3.flash_attn_config"):
        try:
            flags: Mapping[str, Any] = import_module(module).CONFIG["build_flags"]
        except (ImportError, AttributeError, KeyError):
            continue
        return flags
    return {}


PACKAGES = (
    Package(
        name="fa3",
        title="flash-attn 3",
        modules=("flash_attn_interface", "flash_attn_3.flash_attn_interface"),
        function="flash_attn_with_kvcache",
        arguments=("page_table", "cu_seqlens_q", "max_seqlen_q", "softcap", "num_splits"),
        install='pip install --no-build-isolation "git+https://github.com/Dao-AILab/'
        'flash-attention#subdirectory=hopper"',
        options=_fa3_options,
        lacks=("alibi_slopes", "sinks"),
        generations=(9,),
        runs_on="it runs on compute capability 9.0",
        short_pages=True,
        windows_vary=True,
        records_build=True,
    ),
    Package(
        name="fa2",
        title="flash-attn 2",
        modules=("flash_attn",),
        function="flash_attn_varlen_func",
        arguments=("block_table", "softcap", "alibi_slopes"),
        install="pip install flash-attn --no-build-isolation",
        options=_fa2_options,
        lacks=("sinks",),
        decode="flash_attn_with_kvcache",
    ),
    Package(
        name="fa4",
        title="flash-attn-4",
        modules=("flash_attn.cute",),
        function="flash_attn_varlen_func",
        arguments=("page_table", "seqused_k", "max_seqlen_q", "max_seqlen_k", "learnable_sink"),
        install="pip install --pre flash-attn-4",
        options=_fa4_options,
        lacks=("alibi_slopes",),
        generations=(9, 10, 11),
        runs_on="it has paged caches on compute capability 9.0, 10.x and 11.x",
        head_dims={10: 128, 11: 128},
        short_pages=True,
    ),
    Package(
        name="torch",
        title="PyTorch's varlen_attn",
        modules=("torch.nn.attention.varlen",),
        function="varlen_attn",
        arguments=("block_table", "seqused_k", "enable_gqa", "num_splits"),
        install="pip install 'torch>=2.12'",
        options=_torch_options,
        lacks=("alibi_slopes", "soft_cap", "sinks"),
    ),
)
"""In the order in which they are tried."""
