"""The fused decoder does what its operations do one by one, in plain PyTorch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from paged_backends.attention.cache import layout_of
from paged_backends.attention.cpu_attention import CpuAttention
from paged_backends.attention.settings import CpuSettings
from paged_backends.kernels.cpu.tensor_kernels import Kernels
from paged_backends.runners.native.fused_layers import FusedDecoder, FusedLayer, FusedNorm
from paged_core.engine.contexts import AttentionContext
from paged_core.interfaces.attention import AttentionBatch
from paged_core.interfaces.layer import KVCacheDtype, LayerSpec
from paged_core.settings.schema import EngineSettings
from paged_testing.attention_scene import attention_batch
from unit.cpu_kernels import SETS, load

HEADS, KV_HEADS, DIM, WIDTH, INNER, BLOCK = 6, 2, 32, 100, 96, 4
LENGTHS = [(9, 1), (0, 5), (3, 1), (2, 4)]
"""Cached and new tokens of each sequence."""


class Model:
    """Two layers with random weights, in plain PyTorch and for the kernels."""

    def __init__(self, kernels: Kernels, dtype: torch.dtype, family: str) -> None:
        torch.manual_seed(3)
        self.opt, self.gemma, self.dtype = family == "opt", family == "gemma", dtype
        fused = (HEADS + 2 * KV_HEADS) * DIM
        shapes = [(fused, WIDTH), (WIDTH, HEADS * DIM), (INNER, WIDTH), (WIDTH, INNER)]
        if not self.opt:
            shapes[2] = (2 * INNER, WIDTH)  # gates, too
        self.weights = [
            [(torch.randn(shape) * shape[1] ** -0.5).to(dtype) for shape in shapes]
            for _ in range(2)
        ]
        self.bias, self.up_bias = torch.randn(fused).to(dtype), torch.randn(INNER).to(dtype)
        self.norms = [
            [
                FusedNorm(
                    torch.rand(WIDTH).to(dtype), torch.randn(WIDTH).to(dtype) if self.opt else None
                )
                for _ in range(4)
            ]
            for _ in range(2)
        ]
        self.head_norms = [torch.rand(DIM).to(dtype) for _ in range(2)]
        angles = torch.arange(20.0)[:, None] * 0.7 ** torch.arange(DIM / 2)
        self.cos, self.sin = angles.cos(), angles.sin()
        self.fused = FusedDecoder(
            kernels,
            [
                FusedLayer(
                    attention_norm=norms[0],
                    query_key_value=kernels.pack(weights[0], self.bias),
                    query_norm=None if self.opt else self.head_norms[0],
                    key_norm=None if self.opt else self.head_norms[1],
                    rope=None if self.opt else 0,
                    output=kernels.pack(weights[1]),
                    attention_output_norm=norms[1] if self.gemma else None,
                    mlp_norm=norms[2],
                    up=kernels.pack(weights[2], self.up_bias if self.opt else None),
                    down=kernels.pack(weights[3]),
                    mlp_output_norm=norms[3] if self.gemma else None,
                )
                for weights, norms in zip(self.weights, self.norms, strict=True)
            ],
            activation={"llama": "silu", "gemma": "gelu_tanh", "opt": "relu"}[family],  # type: ignore[arg-type]
            eps=1e-5,
            gated=not self.opt,
            norm="layer" if self.opt else "rms",
            norm_offset=1.0 if self.gemma else 0.0,
        )

    def plain(self, hidden: Tensor, lengths: Sequence[int]) -> Tensor:
        """All tokens of whole sequences, one after another, in float64."""
        hidden = hidden.double()
        for weights, norms in zip(self.weights, self.norms, strict=True):
            fused, output, up, down = (weight.double() for weight in weights)
            states = self._norm(hidden, norms[0]) @ fused.T + self.bias.double()
            parts = [self._attend(part) for part in states.split(list(lengths))]
            added = torch.cat(parts) @ output.T
            hidden = hidden + (self._norm(added, norms[1]) if self.gemma else added)
            raised = self._norm(hidden, norms[2]) @ up.T
            if self.opt:
                added = functional.relu(raised + self.up_bias.double()) @ down.T
            else:
                gates, values = raised.chunk(2, -1)
                act = functional.silu(gates)
                if self.gemma:
                    act = functional.gelu(gates, approximate="tanh")
                added = (act * values) @ down.T
            hidden = hidden + (self._norm(added, norms[3]) if self.gemma else added)
        return hidden

    def _norm(self, rows: Tensor, norm: FusedNorm) -> Tensor:
        weight = norm.weight.double() + (1 if self.gemma else 0)
        if norm.bias is not None:
            return functional.layer_norm(rows, rows.shape[-1:], weight, norm.bias.double(), 1e-5)
        return functional.rms_norm(rows, rows.shape[-1:], weight, 1e-5)

    def _attend(self, states: Tensor) -> Tensor:
        """Of one whole sequence."""
        heads = states.view(len(states), -1, DIM)
        query, key, value = heads.split([HEADS, KV_HEADS, KV_HEADS], dim=1)
        if not self.opt:
            query = self._turn(self._norm(query, FusedNorm(self.head_norms[0])))
            key = self._turn(self._norm(key, FusedNorm(self.head_norms[1])))
        key, value = (part.repeat_interleave(HEADS // KV_HEADS, 1) for part in (key, value))
        scores = torch.einsum("qhd,khd->hqk", query, key) * DIM**-0.5
        hidden = torch.ones(len(states), len(states)).triu(1).bool()
        weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        return torch.einsum("hqk,khd->qhd", weights, value).flatten(1)

    def _turn(self, heads: Tensor) -> Tensor:
        first, second = heads.chunk(2, -1)
        cos, sin = (table[: len(heads), None].double() for table in (self.cos, self.sin))
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def batch_of(lengths: Sequence[tuple[int, int]]) -> AttentionBatch:
    """A batch of these cached and new tokens; sequence s owns the blocks 5 s .. 5 s + 4."""
    return attention_batch(np.arange(5 * len(lengths)).reshape(-1, 5), lengths, BLOCK)


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("family", ["llama", "gemma", "opt"])
def test_equals_the_operations_one_by_one(name: str, dtype: torch.dtype, family: str) -> None:
    check(name, dtype, family, "auto")


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_an_int8_cache_is_close(name: str, dtype: torch.dtype) -> None:
    check(name, dtype, "llama", "int8")


def check(name: str, dtype: torch.dtype, family: str, kv_cache_dtype: KVCacheDtype) -> None:
    """Compare two steps with whole sequences, in plain PyTorch."""
    kernels = load(name)
    model = Model(kernels, dtype, family)
    backend = CpuAttention(
        CpuSettings.model_validate({"instruction_set": name}),
        AttentionContext(settings=EngineSettings()),
    )
    spec = LayerSpec(
        num_heads=HEADS,
        num_kv_heads=KV_HEADS,
        head_dim=DIM,
        scale=DIM**-0.5,
        dtype=str(dtype).removeprefix("torch."),
        device="cpu",
        block_size=BLOCK,
        kv_cache_dtype=kv_cache_dtype,
    )
    assert backend.check(spec) is None
    caches = [layout_of(backend).allocate_cache(spec, 20, "cpu") for _ in range(2)]
    for cache in caches:
        cache.view(torch.uint8).fill_(255)  # NaN
    attention = [backend.bind(spec, cache) for cache in caches]
    inputs = [torch.randn(sum(both), WIDTH).to(dtype) for both in LENGTHS]

    def run(chunks: list[tuple[int, int]]) -> Tensor:
        hidden = torch.cat(
            [
                rows[cached : cached + new]
                for rows, (cached, new) in zip(inputs, chunks, strict=True)
            ]
        )
        positions = torch.cat([torch.arange(cached, cached + new) for cached, new in chunks])
        plan = backend.plan(batch_of(chunks))
        if model.opt:
            model.fused.forward(hidden, None, [], [], attention, plan)
        else:
            model.fused.forward(hidden, positions, [model.cos], [model.sin], attention, plan)
        return hidden

    # what is cached first, a token of the others along with it
    run([(0, max(1, cached)) for cached, _ in LENGTHS])
    outputs = run(LENGTHS).split([new for _, new in LENGTHS])
    expected = model.plain(torch.cat(inputs), [len(rows) for rows in inputs])
    bound = 0.15 if dtype is torch.bfloat16 else 1e-4 if kv_cache_dtype == "auto" else 0.02
    for out, whole in zip(outputs, expected.split([len(rows) for rows in inputs]), strict=True):
        torch.testing.assert_close(out.double(), whole[-len(out) :], atol=bound, rtol=bound)


def test_refuses_what_it_does_not_cover() -> None:
    kernels = load("portable")
    weight = kernels.pack(torch.zeros(40, 20))
    layer = FusedLayer(
        attention_norm=FusedNorm(torch.ones(20)),
        query_key_value=weight,
        output=weight,
        mlp_norm=FusedNorm(torch.ones(20)),
        up=weight,
        down=weight,
    )
    with pytest.raises(ValueError, match="not a multiple of 32"):
        FusedDecoder(kernels, [layer], activation="silu", eps=1e-6)
