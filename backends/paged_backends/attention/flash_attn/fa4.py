"""flash-attn-4, for Hopper and Blackwell, as read in version 4.0.0b36."""

# ruff: noqa: N803, N806 - the shape of an array is the upper-case end of its name
from __future__ import annotations

from torch import Tensor

from paged_backends.attention.flash_attn.provider import (
    Provider,
    left_window,
    shorter_than_a_tile,
)
from paged_backends.attention.flash_attn.sequences import Sequences
from paged_backends.kernels.nvidia import dotted
from paged_core.interfaces.layer import LayerSpec


class FlashAttn4(Provider):
    """Pages of any size below 64, no ALiBi; kernels are compiled on first use, without nvcc."""

    name = "fa4"
    title = "flash-attn-4"
    modules = ("flash_attn.cute",)
    function_name = "flash_attn_varlen_func"
    arguments = ("page_table", "seqused_k", "max_seqlen_q", "max_seqlen_k")
    install = "pip install --pre flash-attn-4"
    lacks = ("alibi_slopes",)

    def gpu_problem(self, capability: tuple[int, int]) -> str | None:
        """Hopper, and Blackwell for servers."""
        if capability[0] not in (9, 10, 11):
            return (
                "it has paged caches on compute capability 9.0, 10.x and 11.x, and the GPU has "
                f"{dotted(capability)}"
            )
        return None

    def head_dim_problem(self, head_dim: int, capability: tuple[int, int]) -> str | None:
        """Multiples of 8 up to 256 on Hopper, up to 128 on Blackwell."""
        most = 256 if capability[0] == 9 else 128
        if head_dim % 8 or head_dim > most:
            return f"it takes head dimensions that are multiples of 8 up to {most}, not {head_dim}"
        return None

    def block_size_problem(self, block_size: int) -> str | None:
        """Below 64."""
        return shorter_than_a_tile(block_size)

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
        result = self.function(
            query_THD,
            keys_BPKD,
            values_BPKD,
            cu_seqlens_q=sequences.starts,
            max_seqlen_q=sequences.max_query_len,
            max_seqlen_k=sequences.max_seq_len,
            seqused_k=sequences.lengths,
            page_table=sequences.tables,
            softmax_scale=layer.scale,
            causal=left < 0,
            window_size=(None, None) if left < 0 else (left, 0),
            softcap=layer.soft_cap or 0.0,
        )
        # versions differ in whether the sums of the softmax come with it
        out_THD: Tensor = result[0] if isinstance(result, tuple) else result
        return out_THD
