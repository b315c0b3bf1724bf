"""A batch for benchmarks of attention, and the attention of libraries on it, called without pages.

With keys and values of a sequence as one run of rows, as no engine can have them, and nothing
written, libraries show what a backend that calls them can reach at most.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Self

from paged_core.errors import SettingsError
from paged_core.interfaces.attention import AttentionBatch
from paged_core.interfaces.layer import LayerSpec

if TYPE_CHECKING:
    from torch import Tensor

_PATTERN = re.compile(r"(\d+)x(\d+)(?:\+(\d+))?")
_CACHES = 1 << 28
_MOST_LAYERS = 64


@dataclass(frozen=True, slots=True)
class AttentionCase:
    """Equal sequences: some tokens of each are cached, and some are new."""

    num_sequences: int
    num_cached: int
    num_new: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``SEQUENCESxCACHED+NEW``; without ``+NEW``, one token is new.

        Raises:
            SettingsError: the text has another form.
        """
        found = _PATTERN.fullmatch(text)
        if found is None or not int(found[1]) or found[3] == "0":
            raise SettingsError(
                f"--batch {text}: give the number of sequences, and of cached and new tokens of "
                "each, such as 16x255+1 (decode), 1x0+512 (prefill) or 8x512+32 (a prefill chunk)"
            )
        return cls(int(found[1]), int(found[2]), int(found[3] or 1))

    def __str__(self) -> str:
        return f"{self.num_sequences}x{self.num_cached}+{self.num_new}"

    @property
    def length(self) -> int:
        """Tokens of each sequence."""
        return self.num_cached + self.num_new

    def read_bytes(self, layer: LayerSpec, num_shared: int) -> int:
        """Bytes of keys and values read in a layer; a prefix shared by all is counted once."""
        shared = min(num_shared, self.num_cached)
        tokens = self.num_sequences * (self.length - shared) + shared
        return tokens * layer.bytes_per_token

    def operations(self, layer: LayerSpec) -> int:
        """Floating-point operations of a layer: two products of every query and key it sees."""
        seen = self.num_new * self.num_cached + self.num_new * (self.num_new + 1) // 2
        return 4 * self.num_sequences * seen * layer.num_heads * layer.head_dim

    def num_layers(self, layer: LayerSpec) -> int:
        """Return how many layers to run in turn, so that their keys and values together exceed what
        the caches of a device hold, and each layer reads its own from memory."""
        own = self.num_sequences * self.length * layer.bytes_per_token
        return max(2, min(_MOST_LAYERS, _CACHES // own))

    def batch(self, layer: LayerSpec, num_shared: int) -> tuple[AttentionBatch, int]:
        """Return the batch, and the number of blocks that its tables refer to.

        Args:
            num_shared: cached tokens that all sequences share as a prefix, in whole blocks.
        """
        import torch

        size, count = layer.block_size, self.num_sequences
        width = -(-self.length // size)
        num_blocks = width * count
        order = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(1))
        tables = order.view(count, width)
        num_common = min(num_shared, self.num_cached) // size
        tables[:, :num_common] = tables[0, :num_common].clone()
        positions = torch.arange(self.num_cached, self.length)
        slots = tables[:, positions // size] * size + positions % size
        starts = (torch.arange(count + 1) * self.num_new).int()
        lengths = torch.full((count,), self.length).int()
        tables = tables.int()
        batch = AttentionBatch(
            query_start=starts.to(layer.device),
            seq_lens=lengths.to(layer.device),
            block_tables=tables.to(layer.device),
            slot_mapping=slots.flatten().to(layer.device),
            query_start_host=starts.numpy(),
            seq_lens_host=lengths.numpy(),
            block_tables_host=tables.numpy(),
            max_query_len=self.num_new,
            max_seq_len=self.length,
        )
        return batch, num_blocks


@dataclass(frozen=True, slots=True)
class BareAttention:
    """``flash_attn_varlen_func``, for sequences of several lengths packed one after another."""

    name: str
    module: str

    def problem(self, layer: LayerSpec) -> str | None:
        """Return why it cannot be called here, or ``None``."""
        if not layer.device.startswith("cuda"):
            return f"it needs a CUDA device, and the layers are on {layer.device}"
        try:
            _ = import_module(self.module).flash_attn_varlen_func
        except Exception as error:  # noqa: BLE001 - one built for another torch may raise anything
            return f"{self.module} cannot be imported: {type(error).__name__}: {error}"
        return None

    def run(self, case: AttentionCase, layer: LayerSpec) -> Callable[[], object]:
        """Return a function that computes one layer."""
        import torch

        call = import_module(self.module).flash_attn_varlen_func
        rows = random_rows(case, layer, case.length)
        queries, keys = (
            torch.arange(case.num_sequences + 1, dtype=torch.int32, device=layer.device) * count
            for count in (case.num_new, case.length)
        )
        return lambda: call(
            *rows,
            cu_seqlens_q=queries,
            cu_seqlens_k=keys,
            max_seqlen_q=case.num_new,
            max_seqlen_k=case.length,
            causal=True,
        )


@dataclass(frozen=True, slots=True)
class BareSdpa:
    """PyTorch's ``scaled_dot_product_attention``; all sequences have one length."""

    name: str = "sdpa"
    backend: str | None = None
    """Name in ``torch.nn.attention.SDPBackend``; ``None``: PyTorch chooses, on any device."""

    def problem(self, layer: LayerSpec) -> str | None:
        """Return why it cannot be called here, or ``None``."""
        if self.backend is not None and not layer.device.startswith("cuda"):
            return f"it needs a CUDA device, and the layers are on {layer.device}"
        return None

    def run(self, case: AttentionCase, layer: LayerSpec) -> Callable[[], object]:
        """Return a function that computes one layer."""
        from torch.nn.attention.bias import causal_lower_right
        from torch.nn.functional import scaled_dot_product_attention

        def split(rows: Tensor) -> Tensor:
            return rows.view(case.num_sequences, -1, *rows.shape[1:]).transpose(1, 2)

        query, key, value = map(split, random_rows(case, layer, case.length))
        masked = case.num_new > 1 and case.num_cached > 0
        mask = causal_lower_right(case.num_new, case.length) if masked else None

        def attend() -> Tensor:
            return scaled_dot_product_attention(
                query,
                key,
                value,
                attn_mask=mask,
                is_causal=case.num_new > 1 and not masked,
                enable_gqa=layer.num_heads != layer.num_kv_heads,
            )

        if self.backend is None:
            return attend
        from torch.nn.attention import SDPBackend, sdpa_kernel

        return sdpa_kernel(getattr(SDPBackend, self.backend))(attend)


BARE: tuple[BareAttention | BareSdpa, ...] = (
    BareSdpa(),
    BareSdpa("sdpa cudnn", "CUDNN_ATTENTION"),
    BareAttention("flash-attn 3", "flash_attn_interface"),
    BareAttention("flash-attn 2", "flash_attn"),
    BareAttention("flash-attn 4", "flash_attn.cute"),
)


def random_rows(case: AttentionCase, layer: LayerSpec, num_keys: int) -> list[Tensor]:
    """Return queries [T, H, D], and keys and values [K, KV heads, D], all sequences packed.

    Args:
        num_keys: keys and values of each sequence.
    """
    import torch

    kind = getattr(torch, layer.dtype)
    shapes = [(case.num_new, layer.num_heads), *[(num_keys, layer.num_kv_heads)] * 2]
    return [
        torch.randn(case.num_sequences * count, heads, layer.head_dim, device=layer.device).to(kind)
        for count, heads in shapes
    ]
