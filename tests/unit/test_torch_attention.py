"""The component ``torch`` against dense attention in float64, one query and one head at a time."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paged_backends.attention import torch_attention
from paged_backends.attention.settings import TorchSettings
from paged_backends.attention.torch_attention import TorchAttention
from paged_core.engine.contexts import AttentionContext
from paged_core.interfaces.layer import LayerSpec
from paged_testing.attention_scene import attention_batch

TOLERANCE = {"float32": 2e-5, "bfloat16": 2e-2, "float16": 3e-3}


def backend() -> TorchAttention:
    context = AttentionContext(settings=cast("Any", SimpleNamespace(deterministic=False)))
    return TorchAttention(TorchSettings(), context)


def dense(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, layer: LayerSpec
) -> torch.Tensor:
    """Attention of the last rows of a sequence: query [Q, heads, D], keys and values [K, kv, D]."""
    query, keys, values = query.double(), keys.double(), values.double()
    out = torch.zeros_like(query)
    group = layer.num_heads // layer.num_kv_heads
    for row in range(len(query)):
        position = len(keys) - len(query) + row
        for head in range(layer.num_heads):
            scores = []
            seen = []
            for key in range(position + 1):
                if layer.sliding_window is not None and key <= position - layer.sliding_window:
                    continue
                score = float(query[row, head] @ keys[key, head // group]) * layer.scale
                if layer.soft_cap is not None:
                    score = layer.soft_cap * math.tanh(score / layer.soft_cap)
                if layer.alibi_slopes is not None:
                    score += layer.alibi_slopes[head] * (key - position)
                scores.append(score)
                seen.append(key)
            weights = torch.tensor(scores, dtype=torch.float64).softmax(0)
            out[row, head] = weights @ values[seen, head // group]
    return out


class Scene:
    """Sequences whose leading tokens lie in a cache, and a batch of the tokens that follow."""

    def __init__(self, layer: LayerSpec, chunks: list[tuple[int, int]], seed: int) -> None:
        """``chunks``: for each sequence, how many tokens are cached and how many are new."""
        random = torch.Generator().manual_seed(seed)
        self.layer, self.chunks = layer, chunks
        size, dtype = layer.block_size, getattr(torch, layer.dtype)
        lengths = [cached + new for cached, new in chunks]
        width = max(-(-length // size) for length in lengths)
        num_blocks = width * len(chunks) + 3
        order = torch.randperm(num_blocks, generator=random)
        self.tables = order[: width * len(chunks)].view(len(chunks), width)

        def tokens(count: int, heads: int) -> torch.Tensor:
            return torch.randn(count, heads, layer.head_dim, generator=random).to(dtype)

        self.queries = [tokens(new, layer.num_heads) for _, new in chunks]
        self.keys = [tokens(length, layer.num_kv_heads) for length in lengths]
        self.values = [tokens(length, layer.num_kv_heads) for length in lengths]
        self.backend = backend()
        # memory that no sequence owns is NaN: reading any of it shows
        self.cache = torch.full(self.backend.cache_shape(layer, num_blocks), math.nan, dtype=dtype)
        self.attention = self.backend.bind(layer, self.cache)

    def run(self, members: list[int]) -> list[torch.Tensor]:
        """Write the cached part, then run these sequences' new tokens as one batch."""
        for index in members:
            cached = self.chunks[index][0]
            if cached:
                head = torch.zeros(cached, self.layer.num_heads, self.layer.head_dim)
                self._forward([(index, 0, cached, head.to(self.cache.dtype))])
        out = self._forward(
            [(index, *self.chunks[index], self.queries[index]) for index in members]
        )
        return list(out.split([self.chunks[index][1] for index in members]))

    def _forward(self, rows: list[tuple[int, int, int, torch.Tensor]]) -> torch.Tensor:
        batch = attention_batch(
            self.tables[[index for index, *_ in rows]].numpy(),
            [(cached, new) for _, cached, new, _ in rows],
            self.layer.block_size,
        )
        parts = [
            (self.keys[index][cached : cached + new], self.values[index][cached : cached + new])
            for index, cached, new, _ in rows
        ]
        return self.attention.forward(
            torch.cat([query for *_, query in rows]),
            torch.cat([key for key, _ in parts]),
            torch.cat([value for _, value in parts]),
            self.backend.plan(batch),
        )

    def expected(self, index: int) -> torch.Tensor:
        return dense(self.queries[index], self.keys[index], self.values[index], self.layer)


LAYER = LayerSpec(
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    scale=0.3,
    dtype="float32",
    device="cpu",
    block_size=4,
)

layers = st.builds(
    lambda kv, group, dim, window, cap, alibi, dtype, size: LayerSpec(
        num_heads=kv * group,
        num_kv_heads=kv,
        head_dim=dim,
        scale=dim**-0.5,
        dtype=dtype,
        device="cpu",
        block_size=size,
        sliding_window=window,
        soft_cap=cap,
        alibi_slopes=tuple(0.5 / (i + 1) for i in range(kv * group)) if alibi else None,
    ),
    kv=st.integers(1, 3),
    group=st.integers(1, 3),
    dim=st.sampled_from([1, 4, 6]),
    window=st.none() | st.integers(1, 9),
    cap=st.none() | st.sampled_from([0.5, 5.0]),
    alibi=st.booleans(),
    dtype=st.sampled_from(["float32", "float32", "bfloat16", "float16"]),
    size=st.sampled_from([1, 2, 3, 4, 16]),
)
chunks = st.lists(
    st.tuples(st.integers(0, 12), st.integers(1, 3) | st.integers(1, 12)), min_size=1, max_size=5
)


@settings(max_examples=120, deadline=None)
@given(layer=layers, chunks=chunks, seed=st.integers(0, 2**16))
def test_equals_dense_attention(layer: LayerSpec, chunks: list[tuple[int, int]], seed: int) -> None:
    scene = Scene(layer, chunks, seed)
    for index, out in enumerate(scene.run(list(range(len(chunks))))):
        assert out.dtype == getattr(torch, layer.dtype)
        torch.testing.assert_close(
            out.double(),
            scene.expected(index),
            atol=TOLERANCE[layer.dtype],
            rtol=TOLERANCE[layer.dtype],
        )


@pytest.mark.parametrize("window", [None, 5])
def test_equals_dense_attention_when_a_chunk_takes_several_tiles(
    window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_attention, "_MAX_SCORES", 24)
    monkeypatch.setattr(torch_attention, "_MAX_KEYS", 16)
    monkeypatch.setattr(torch_attention, "_SLACK", 0)
    chunks = [(5, 9), (9, 1), (0, 11), (3, 1), (30, 1), (0, 2)]
    scene = Scene(replace(LAYER, sliding_window=window), chunks, 1)
    for index, out in enumerate(scene.run(list(range(len(chunks))))):
        torch.testing.assert_close(out.double(), scene.expected(index), atol=2e-5, rtol=2e-5)


def test_a_row_hardly_depends_on_the_rest_of_the_batch() -> None:
    chunks = [(40, 1), (3, 1), (0, 9), (7, 5), (11, 1)]
    together = Scene(LAYER, chunks, 2).run([0, 1, 2, 3, 4])
    for index, out in enumerate(together):
        alone = Scene(LAYER, chunks, 2).run([index])[0]
        torch.testing.assert_close(out, alone, atol=1e-6, rtol=1e-6)


def test_nan_in_a_sequence_spoils_no_other() -> None:
    scene = Scene(LAYER, [(6, 1), (2, 1), (0, 3)], 3)
    scene.values[0][:] = math.nan
    scene.keys[0][:] = math.inf
    outputs = scene.run([0, 1, 2])
    assert outputs[0].isnan().all()
    for index in (1, 2):
        torch.testing.assert_close(
            outputs[index].double(), scene.expected(index), atol=2e-5, rtol=2e-5
        )


def test_says_what_it_cannot_serve() -> None:
    assert backend().check(LAYER) is None
    assert "evenly" in str(backend().check(replace(LAYER, num_kv_heads=3)))
    assert "slopes" in str(backend().check(replace(LAYER, alibi_slopes=(1.0,))))


def test_block_dim_counts_blocks() -> None:
    shape = backend().cache_shape(LAYER, 7)
    assert shape[backend().block_dim()] == 7
