"""Attention without a paged cache, and ranks that are threads, for tests of runners.

Tensors are torch's, which is imported when the first one is made: the kit does not import it.

Shapes: H query heads, K key/value heads, D head_dim, Q new and L all tokens of a sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from threading import Barrier
from typing import Any, ClassVar

from paged_core.interfaces.attention import HeadPreparation
from paged_core.interfaces.communicator import Communicator
from paged_core.interfaces.layer import LayerSpec


class DenseAttention:
    """Keeps the keys and values of sequences in lists, and attends to all of them."""

    def __init__(self, specs: Sequence[LayerSpec], num_sequences: int) -> None:
        self._torch: Any = import_module("torch")
        self._specs = specs
        self.called: list[int] = []
        """The layers that attended in this step, in order."""
        self.meanwhile: Callable[[], object] | None = None
        """Called in the middle of each step."""
        self._kept: list[list[Any]] = [[None] * num_sequences for _ in specs]
        self._batch: Sequence[tuple[int, int]] = ()

    def begin(self, batch: Sequence[tuple[int, int]]) -> None:
        """Start a step; ``batch`` holds the index and the number of new tokens of each sequence."""
        self._batch, self.called = batch, []

    def __call__(self, layer: int, query: Any, key: Any, value: Any, /) -> Any:
        """Attend in ``layer``.

        Raises:
            AssertionError: a shape or dtype differs from the layer's description.
        """
        assert layer in range(len(self._specs)), f"attend() of layer {layer!r}: its index in layers"
        spec = self._specs[layer]
        total = sum(num_tokens for _, num_tokens in self._batch)
        for name, part in (("query", query), ("key", key), ("value", value)):
            heads = spec.num_heads if name == "query" else spec.num_kv_heads
            found = (tuple(part.shape), str(part.dtype).removeprefix("torch."))
            wanted = ((total, heads, spec.head_dim), spec.dtype)
            assert found == wanted, f"attend() of layer {layer} gets a {name} of {found}: {wanted}"
            assert spec.head_dim == 1 or part.stride(2) == 1, (
                f"the numbers of a head are beside each other: the {name} has {part.stride()}"
            )
        self.called.append(layer)
        if self.meanwhile is not None and layer == len(self._specs) // 2:
            self.meanwhile()
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
        scores = scores.masked_fill(hidden.to(scores.device), -torch.inf)
        sinks = torch.tensor(spec.sinks or [-torch.inf] * spec.num_heads, device=scores.device)
        sinks = sinks[:, None, None].expand(*scores.shape[:-1], 1)
        weights = torch.cat([scores, sinks], -1).softmax(-1)[..., :-1]
        return torch.einsum("hqk,khd->qhd", weights, values)


@dataclass
class _Layer:
    attention: FusedAttention
    number: int

    def forward(self, query: Any, key: Any, value: Any, plan: Any, /) -> Any:
        assert plan is self.attention.plan, "a layer is called with another plan than attend.plan"
        return self.attention(self.number, query, key, value)


class _PreparingLayer(_Layer):
    def prepare_and_forward(self, query: Any, key: Any, *more: Any) -> Any:
        value, plan, how = more
        heads = prepared(query, how.query_norm, how), prepared(key, how.key_norm, how)
        return self.forward(*heads, value, plan)


class FusedAttention(DenseAttention):
    """One whose layers a runner may call itself."""

    _kind: ClassVar[type[_Layer]] = _Layer

    def __init__(self, specs: Sequence[LayerSpec], num_sequences: int) -> None:
        super().__init__(specs, num_sequences)
        self.plan = object()
        self.layers = [self._kind(self, number) for number in range(len(specs))]


class PreparingAttention(FusedAttention):
    """One whose layers prepare heads, too."""

    _kind = _PreparingLayer


def prepared(heads: Any, norm: Any, how: HeadPreparation) -> Any:
    """Return heads [T, ., D] as they come to attention, computed in float64."""
    torch: Any = import_module("torch")
    numbers = heads.double()
    if norm is not None:
        scale = (numbers.square().mean(-1, keepdim=True) + how.eps).rsqrt()
        numbers = numbers * scale * (norm.double() + how.offset)
    if how.cos is not None and how.sin is not None:
        low, high = numbers.chunk(2, -1)
        cos, sin = how.cos.double()[:, None], how.sin.double()[:, None]
        numbers = torch.cat([low * cos - high * sin, high * cos + low * sin], -1)
    return numbers.to(heads.dtype)


class ThreadRank(Communicator):
    """One end of a group of threads."""

    def __init__(self, rank: int, parts: list[Any], barrier: Barrier) -> None:
        self.rank, self.size = rank, len(parts)
        self._parts, self._barrier = parts, barrier

    def all_gather(self, tensor: Any, /) -> Any:
        self._parts[self.rank] = tensor.clone()
        self._barrier.wait()
        found = import_module("torch").stack(self._parts)
        self._barrier.wait()
        return found

    def all_reduce(self, tensor: Any, /) -> None:
        tensor.copy_(self.all_gather(tensor).float().sum(0))

    def broadcast(self, tensor: Any, /, source: int = 0) -> None:
        tensor.copy_(self.all_gather(tensor)[source])

    def close(self) -> None:
        self._barrier.abort()
