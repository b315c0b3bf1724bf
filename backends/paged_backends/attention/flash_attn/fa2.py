"""flash-attn 2, as read in version 2.8.3: ``pip install flash-attn``."""

# ruff: noqa: N803, N806 - the shape of an array is the upper-case end of its name
from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

from torch import Tensor

from paged_backends.attention.flash_attn.provider import (
    Provider,
    left_window,
    multiple_of_256,
)
from paged_backends.attention.flash_attn.sequences import Sequences
from paged_backends.attention.optional_import import function_of
from paged_core.interfaces.layer import LayerSpec


class FlashAttn2(Provider):
    """Everything that a layer may have, on pages of 256 tokens.

    A step that decodes only is computed by the function for that, which splits long sequences.
    """

    name = "fa2"
    title = "flash-attn 2"
    modules = ("flash_attn",)
    function_name = "flash_attn_varlen_func"
    arguments = ("block_table", "softcap", "alibi_slopes")
    install = "pip install flash-attn --no-build-isolation"

    @cached_property
    def decode(self) -> Callable[..., Any]:
        """What computes attention of one query for each sequence."""
        return function_of(self.modules, "flash_attn_with_kvcache", install=self.install)

    def block_size_problem(self, block_size: int) -> str | None:
        """Multiples of 256."""
        return multiple_of_256(block_size)

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
        left = left_window(layer)
        options = {
            "block_table": sequences.tables,
            "softmax_scale": layer.scale,
            "causal": True,
            "softcap": layer.soft_cap or 0.0,
            "alibi_slopes": slopes_H,
        }
        if sequences.max_query_len == 1 and not self.deterministic:
            out_S1HD: Tensor = self.decode(
                query_THD[:, None],
                keys_BPKD,
                values_BPKD,
                cache_seqlens=sequences.lengths,
                window_size=(left, -1 if left < 0 else 0),
                **options,
            )
            return out_S1HD[:, 0]
        # a right end of 0 keeps a batch of single queries from being packed by group and split,
        # so that every batch is computed by the same kernel; else the end is open
        end = 0 if self.deterministic or left >= 0 else -1
        out_THD: Tensor = self.function(
            query_THD,
            keys_BPKD,
            values_BPKD,
            sequences.starts,
            sequences.ends,
            sequences.max_query_len,
            sequences.max_seq_len,
            window_size=(left, end),
            **options,
        )
        return out_THD
