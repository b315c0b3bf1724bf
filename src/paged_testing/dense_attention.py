"""Attention over whole sequences, without a paged cache: the reference for runners.

Tensors are torch's, which is imported when the first one is made: the core does not import it.

Shapes: H query heads, K key/value heads, D head_dim, Q new and L all tokens of a sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from paged_core.interfaces.layer import LayerSpec


class DenseAttention:
    """Keeps the keys and values of sequences in lists, and attends to all of them."""

    def __init__(self, layers: Sequence[LayerSpec], num_sequences: int) -> None:
        self._torch: Any = import_module("torch")
        self.layers = layers
        self.called: list[int] = []
        """The layers that attended in this step, in order."""
        self._kept: list[list[Any]] = [[None] * num_sequences for _ in layers]
        self._batch: Sequence[tuple[int, int]] = ()

    def begin(self, batch: Sequence[tuple[int, int]]) -> None:
        """Start a step; ``batch`` holds the index and the number of new tokens of each sequence."""
        self._batch, self.called = batch, []

    def __call__(self, layer: int, query: Any, key: Any, value: Any, /) -> Any:
        """Attend in ``layer``.

        Raises:
            AssertionError: a shape or dtype differs from the layer's description.
        """
        spec = self.layers[layer]
        total = sum(num_tokens for _, num_tokens in self._batch)
        assert tuple(query.shape) == (total, spec.num_heads, spec.head_dim), query.shape
        for part in (key, value):
            assert tuple(part.shape) == (total, spec.num_kv_heads, spec.head_dim), part.shape
            assert str(part.dtype).removeprefix("torch.") == spec.dtype, part.dtype
        self.called.append(layer)
        results, start = [], 0
        for sequence, num_tokens in self._batch:
            rows = slice(start, start + num_tokens)
            start += num_tokens
            new = self._torch.stack([key[rows], value[rows]])
            before = self._kept[layer][sequence]
            seen = new if before is None else self._torch.cat([before, new], dim=1)
            self._kept[layer][sequence] = seen.clone()
            results.append(self._attend(spec, query[rows], seen))
        return self._torch.cat(results).to(query.dtype)

    def _attend(self, spec: LayerSpec, query: Any, seen: Any) -> Any:
        """Return [Q, H, D] for the last Q tokens of ``seen``, keys and values [2, L, K, D]."""
        torch = self._torch
        keys, values = seen.float().repeat_interleave(spec.num_heads // spec.num_kv_heads, dim=2)
        scores = torch.einsum("qhd,khd->hqk", query.float(), keys) * spec.scale
        if spec.soft_cap is not None:
            scores = spec.soft_cap * torch.tanh(scores / spec.soft_cap)
        length = keys.shape[0]
        distance = torch.arange(length - len(query), length)[:, None] - torch.arange(length)
        if spec.alibi_slopes is not None:
            scores = scores - torch.tensor(spec.alibi_slopes)[:, None, None] * distance
        hidden = distance < 0
        if spec.sliding_window is not None:
            hidden |= distance >= spec.sliding_window
        weights = scores.masked_fill(hidden.to(scores.device), -torch.inf).softmax(-1)
        return torch.einsum("hqk,khd->qhd", weights, values)
