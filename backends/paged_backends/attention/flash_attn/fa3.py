"""flash-attn 3, for Hopper, as read in the folder ``hopper`` of its repository."""

# ruff: noqa: N803, N806 - the shape of an array is the upper-case end of its name
from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from torch import Tensor

from paged_backends.attention.flash_attn.provider import (
    Provider,
    left_window,
    shorter_than_a_tile,
)
from paged_backends.attention.flash_attn.sequences import Sequences
from paged_backends.kernels.nvidia import dotted
from paged_core.interfaces.layer import LayerSpec


class FlashAttn3(Provider):
    """Pages of any size below 64, no ALiBi; one function for all batches."""

    name = "fa3"
    title = "flash-attn 3"
    modules = ("flash_attn_interface", "flash_attn_3.flash_attn_interface")
    function_name = "flash_attn_with_kvcache"
    arguments = ("page_table", "cu_seqlens_q", "max_seqlen_q", "softcap", "num_splits")
    install = (
        'pip install --no-build-isolation "git+https://github.com/Dao-AILab/flash-attention'
        '#subdirectory=hopper"'
    )
    lacks = ("alibi_slopes",)

    def check(self, layer: LayerSpec, capability: tuple[int, int]) -> str | None:
        """See :class:`Provider`."""
        if self.deterministic and layer.sliding_window is not None:
            # the tiles of a window that no sequence of the batch exceeds are those of no window
            return (
                "its kernel for a sliding window depends on the rest of the batch, which "
                "deterministic rules out"
            )
        return super().check(layer, capability)

    def gpu_problem(self, capability: tuple[int, int]) -> str | None:
        """Hopper."""
        if capability[0] != 9:
            return f"it runs on compute capability 9.0, and the GPU has {dotted(capability)}"
        return None

    def block_size_problem(self, block_size: int) -> str | None:
        """Below 64."""
        return shorter_than_a_tile(block_size)

    def build_problem(self, layer: LayerSpec) -> str | None:
        """Return what was left out when it was built, as its own record says, if there is one."""
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

    def attend(
        self,
        layer: LayerSpec,
        query_THD: Tensor,
        keys_BPKD: Tensor,
        values_BPKD: Tensor,
        slopes_H: Tensor | None,
        sequences: Sequences,
    ) -> Tensor:
        """See :class:`Provider`."""
        left, max_query_len = left_window(layer), sequences.max_query_len
        if self.deterministic:
            # single queries are computed by another kernel, whose tiles differ
            max_query_len = max(max_query_len, 2)
        out_THD: Tensor = self.function(
            query_THD,
            keys_BPKD,
            values_BPKD,
            cache_seqlens=sequences.lengths,
            page_table=sequences.tables,
            cu_seqlens_q=sequences.starts,
            max_seqlen_q=max_query_len,
            softmax_scale=layer.scale,
            causal=True,
            window_size=(left, -1 if left < 0 else 0),
            softcap=layer.soft_cap or 0.0,
            num_splits=1 if self.deterministic else 0,
        )
        return out_THD


def _build_flags() -> Mapping[str, Any]:
    """Return the options that it was built with, by name; none are known of older versions."""
    for module in ("flash_attn_config", "flash_attn_3.flash_attn_config"):
        try:
            flags: Mapping[str, Any] = import_module(module).CONFIG["build_flags"]
        except (ImportError, AttributeError, KeyError):
            continue
        return flags
    return {}
