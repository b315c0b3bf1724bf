"""PyTorch's own variable-length attention over a block table, since PyTorch 2.12."""

# ruff: noqa: N803, N806 - the shape of an array is the upper-case end of its name
from __future__ import annotations

from torch import Tensor

from paged_backends.attention.flash_attn.provider import (
    Provider,
    left_window,
    multiple_of_256,
)
from paged_backends.attention.flash_attn.sequences import Sequences
from paged_core.interfaces.layer import LayerSpec


class TorchVarlen(Provider):
    """The flash-attn 2 that PyTorch contains: pages of 256 tokens, no ALiBi, no soft cap."""

    name = "torch"
    title = "PyTorch's varlen_attn"
    modules = ("torch.nn.attention.varlen",)
    function_name = "varlen_attn"
    arguments = ("block_table", "seqused_k", "enable_gqa", "num_splits")
    install = "pip install 'torch>=2.12'"
    lacks = ("alibi_slopes", "soft_cap")

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
        window = (left_window(layer), 0)
        if window[0] < 0 and sequences.max_query_len == 1 and not self.deterministic:
            # a single query sees all keys; without an end, its group is packed into one tile
            window = (-1, -1)
        out_THD: Tensor = self.function(
            query_THD,
            keys_BPKD,
            values_BPKD,
            sequences.starts,
            sequences.ends,
            sequences.max_query_len,
            sequences.max_seq_len,
            scale=layer.scale,
            window_size=window,
            enable_gqa=layer.num_heads != layer.num_kv_heads,
            seqused_k=sequences.lengths,
            block_table=sequences.tables,
            num_splits=1 if self.deterministic else None,
        )
        return out_THD
