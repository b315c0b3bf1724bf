"""Sequences in a paged cache, a batch of their next tokens, and what attention must make of it.

Tensors are torch's, which is imported when the first scene is made: the core does not know it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paged_core.interfaces.attention import AttentionBackend
from paged_core.interfaces.layer import LayerSpec
from paged_core.testing.attention_batch import attention_batch

Arrange = Callable[[Any, Any, Any], tuple[Any, Any, Any]]


class Scene:
    """Sequences with shuffled block tables, over a cache that holds no numbers where none wrote."""

    def __init__(
        self,
        backend: AttentionBackend,
        layer: LayerSpec,
        chunks: Sequence[tuple[int, int]],
        seed: int,
    ) -> None:
        """``chunks``: for each sequence, how many tokens are cached and how many are new."""
        self._torch: Any = import_module("torch")
        torch = self._torch
        random = torch.Generator().manual_seed(seed)
        self.backend, self.layer, self.chunks = backend, layer, list(chunks)
        dtype = getattr(torch, layer.dtype)
        lengths = [cached + new for cached, new in chunks]
        width = max(-(-length // layer.block_size) for length in lengths)
        self.num_blocks = width * len(chunks) + 3
        order = torch.randperm(self.num_blocks, generator=random)
        self.tables = order[: width * len(chunks)].view(len(chunks), width)

        def tokens(count: int, heads: int) -> Any:
            values = torch.randn(count, heads, layer.head_dim, generator=random)
            return values.to(layer.device, dtype)

        self.queries = [tokens(new, layer.num_heads) for _, new in chunks]
        self.keys = [tokens(length, layer.num_kv_heads) for length in lengths]
        self.values = [tokens(length, layer.num_kv_heads) for length in lengths]
        self.cache = torch.full(
            backend.cache_shape(layer, self.num_blocks),
            float("nan"),
            dtype=dtype,
            device=layer.device,
        )
        self._attention = backend.bind(layer, self.cache)

    # ------------------------------------------------------------------ what is done

    def run(
        self,
        members: Sequence[int],
        *,
        write_cached: bool = True,
        arrange: Arrange | None = None,
    ) -> list[Any]:
        """Run these sequences' new tokens as one batch; return each one's result.

        Args:
            write_cached: write what they have cached first.
            arrange: lays query, key and value out in memory.
        """
        if write_cached:
            self.write_cached(members)
        rows = [(index, *self.chunks[index], self.queries[index]) for index in members]
        out = self._forward(rows, arrange)
        return [part.cpu() for part in out.split([new for _, _, new, _ in rows])]

    def write_cached(self, members: Sequence[int]) -> None:
        """Write the cached tokens, one sequence after another."""
        for index in members:
            cached = self.chunks[index][0]
            if cached:
                shape = (cached, self.layer.num_heads, self.layer.head_dim)
                self._forward([(index, 0, cached, self.cache.new_zeros(shape))], None)

    def move_blocks(self) -> None:
        """Copy all blocks to other places, and forget the first ones."""
        dim = self.backend.block_dim()
        targets = self._torch.arange(self.num_blocks).roll(1)
        moved = self._torch.full_like(self.cache, float("nan"))
        moved.index_copy_(dim, targets.to(self.cache.device), self.cache.clone())
        self.cache.copy_(moved)
        self.tables = targets[self.tables]

    def share_blocks(self, *, owner: int, other: int, count: int = 1) -> None:
        """Let both begin with the same tokens, in the same ``count`` blocks."""
        size = count * self.layer.block_size
        self.tables[other, :count] = self.tables[owner, :count]
        self.keys[other][:size] = self.keys[owner][:size]
        self.values[other][:size] = self.values[owner][:size]

    def side_by_side(self, query: Any, key: Any, value: Any) -> tuple[Any, Any, Any]:
        """Slices of one tensor, as a fused projection makes them."""
        heads = [part.shape[1] for part in (query, key, value)]
        first, second, third = self._torch.cat([query, key, value], dim=1).split(heads, dim=1)
        return first, second, third

    def heads_first(self, query: Any, key: Any, value: Any) -> tuple[Any, Any, Any]:
        """The tokens of a head side by side."""
        first, second, third = (
            part.transpose(0, 1).contiguous().transpose(0, 1) for part in (query, key, value)
        )
        return first, second, third

    def _forward(self, rows: Sequence[tuple[int, int, int, Any]], arrange: Arrange | None) -> Any:
        torch, layer = self._torch, self.layer
        batch = attention_batch(
            self.tables[[index for index, *_ in rows]].numpy(),
            [(cached, new) for _, cached, new, _ in rows],
            layer.block_size,
            layer.device,
        )
        query = torch.cat([part for *_, part in rows])
        key, value = (
            torch.cat([kept[index][cached : cached + new] for index, cached, new, _ in rows])
            for kept in (self.keys, self.values)
        )
        if arrange is not None:
            query, key, value = arrange(query, key, value)
        return self._attention.forward(query, key, value, self.backend.plan(batch))

    # ------------------------------------------------------------------ what must come out

    def expected(self, index: int) -> NDArray[np.float64]:
        """Dense attention of a sequence's new tokens, [Q, heads, D], head by head."""
        layer = self.layer
        query, keys, values = (
            part.double().cpu().numpy()
            for part in (self.queries[index], self.keys[index], self.values[index])
        )
        out = np.zeros(query.shape)
        group = layer.num_heads // layer.num_kv_heads
        for row in range(len(query)):
            position = len(keys) - len(query) + row
            first = 0 if layer.sliding_window is None else position + 1 - layer.sliding_window
            seen = slice(max(0, first), position + 1)
            distance = position - np.arange(seen.start, seen.stop)
            for head in range(layer.num_heads):
                scores = keys[seen, head // group] @ query[row, head] * layer.scale
                if layer.soft_cap is not None:
                    scores = layer.soft_cap * np.tanh(scores / layer.soft_cap)
                if layer.alibi_slopes is not None:
                    scores = scores - layer.alibi_slopes[head] * distance
                weights = np.exp(scores - scores.max())
                out[row, head] = weights / weights.sum() @ values[seen, head // group]
        return out
