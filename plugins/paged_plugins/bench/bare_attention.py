"""Attention of libraries, called without pages: what a backend that calls them can reach at most.

Keys and values of a sequence are one run of rows, as no engine can have them; nothing is written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from inspect import signature
from typing import TYPE_CHECKING, Any

from paged_core.interfaces.layer import LayerSpec
from paged_plugins.bench.attention_case import AttentionCase

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class BareAttention:
    """A function for sequences of several lengths, packed one after another."""

    name: str
    module: str
    function: str
    lengths: tuple[str, str, str, str]
    """Its keywords for where queries and keys of each sequence begin, and the longest of each."""
    causal: Mapping[str, Any] = field(default_factory=lambda: {"causal": True})

    def problem(self, layer: LayerSpec) -> str | None:
        """Return why it cannot be called here, or ``None``."""
        if not layer.device.startswith("cuda"):
            return f"it needs a CUDA device, and the layers are on {layer.device}"
        try:
            found = getattr(import_module(self.module), self.function)
        except Exception as error:  # noqa: BLE001 - one built for another torch may raise anything
            return f"{self.module} cannot be imported: {type(error).__name__}: {error}"
        known = signature(found).parameters
        unknown = [name for name in (*self.lengths, *self.causal) if name not in known]
        if unknown and not any(one.kind is one.VAR_KEYWORD for one in known.values()):
            return f"this version of {self.module} does not take {', '.join(unknown)}"
        return None

    def run(self, case: AttentionCase, layer: LayerSpec) -> Callable[[], object]:
        """Return a function that computes one layer."""
        import torch

        call = getattr(import_module(self.module), self.function)
        rows = _random_rows(case, layer)
        counts = (case.num_new, case.length)
        starts = [
            torch.arange(case.num_sequences + 1, dtype=torch.int32, device=layer.device) * count
            for count in counts
        ]
        named = dict(zip(self.lengths, (*starts, *counts), strict=True)) | dict(self.causal)
        return lambda: call(*rows, **named)


class BareSdpa:
    """PyTorch's ``scaled_dot_product_attention``, on any device; all sequences have one length."""

    name = "sdpa"

    def problem(self, layer: LayerSpec) -> str | None:
        """Return ``None``: it is part of PyTorch."""
        return None

    def run(self, case: AttentionCase, layer: LayerSpec) -> Callable[[], object]:
        """Return a function that computes one layer."""
        from torch.nn.attention.bias import causal_lower_right
        from torch.nn.functional import scaled_dot_product_attention

        def split(rows: Tensor) -> Tensor:
            return rows.view(case.num_sequences, -1, *rows.shape[1:]).transpose(1, 2)

        query, key, value = map(split, _random_rows(case, layer))
        masked = case.num_new > 1 and case.num_cached > 0
        mask = causal_lower_right(case.num_new, case.length) if masked else None
        return lambda: scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=mask,
            is_causal=case.num_new > 1 and not masked,
            enable_gqa=layer.num_heads != layer.num_kv_heads,
        )


_FLASH = ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k")
_TORCH = ("cu_seq_q", "cu_seq_k", "max_q", "max_k")
BARE: tuple[BareAttention | BareSdpa, ...] = (
    BareSdpa(),
    BareAttention(
        "torch varlen",
        "torch.nn.attention.varlen",
        "varlen_attn",
        _TORCH,
        {"window_size": (-1, 0), "enable_gqa": True},
    ),
    BareAttention("flash-attn 3", "flash_attn_interface", "flash_attn_varlen_func", _FLASH),
    BareAttention("flash-attn 2", "flash_attn", "flash_attn_varlen_func", _FLASH),
    BareAttention("flash-attn 4", "flash_attn.cute", "flash_attn_varlen_func", _FLASH),
)


def _random_rows(case: AttentionCase, layer: LayerSpec) -> list[Tensor]:
    """Return queries [T, H, D], and keys and values [K, KV heads, D], all sequences packed."""
    import torch

    shapes = (
        (case.num_new, layer.num_heads),
        (case.length, layer.num_kv_heads),
        (case.length, layer.num_kv_heads),
    )
    return [
        torch.randn(case.num_sequences * count, heads, layer.head_dim, device=layer.device).to(
            getattr(torch, layer.dtype)
        )
        for count, heads in shapes
    ]
