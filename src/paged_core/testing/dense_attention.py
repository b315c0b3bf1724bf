"""Attention over whole sequences, kept in plain lists: what a runner is tried with.

Tensors are torch's, which is imported when the first one is made: the core does not know it.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from paged_core.interfaces.layer import LayerSpec


class DenseAttention:
    """Keeps the keys and values of some sequences, and attends to all of them, without blocks."""

    def __init__(self, layers: Sequence[LayerSpec], num_sequences: int) -> None:
        self._torch: Any = import_module("torch")
        self.layers = layers
        self.called: list[int] = []
        """The layers that attended in this step, in order."""
        self._kept: list[list[Any]] = [[None] * num_sequences for _ in layers]
        self._batch: Sequence[tuple[int, int]] = ()

    def begin(self, batch: Sequence[tuple[int, int]]) -> None:
        """Start a step of so many tokens of each of these sequences, one after another."""
        self._batch, self.called = batch, []

    def __call__(self, layer: int, query: Any, key: Any, value: Any, /) -> Any:
        """What a runner calls in each layer.

        Raises:
            AssertionError: a shape or type is not what the layer was said to have.
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
        """[Q, heads, D] of the last Q of the tokens seen, [2, tokens, kv_heads, D]."""
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
