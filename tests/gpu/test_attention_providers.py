"""Packages for attention on a GPU, where they are installed: the contract of every component, CUDA
graphs, and that no step waits for the device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch

from paged_core.interfaces.attention import AttentionBatch, SupportsGraphCapture
from paged_testing import AttentionConformance
from paged_testing.attention_scene import attention_batch
from unit.attention_calls import LAYER, make


def flash_attn(provider: str) -> dict[str, Any]:
    return {"name": "flash_attn", "provider": provider}


class OnGpu(AttentionConformance):
    """Kernels may be compiled on first use, by nvcc in minutes."""

    device = "cuda"
    dtypes = ("bfloat16", "float16")
    head_dims = (64, 80, 96, 128, 256)
    max_seconds = 900


class TestFlashAttn2(OnGpu):
    component: ClassVar[Mapping[str, Any]] = flash_attn("fa2")
    block_multiple = 256


class TestFlashAttn2Deterministic(TestFlashAttn2):
    deterministic = keeps_bits = True


class TestFlashAttn3(OnGpu):
    component: ClassVar[Mapping[str, Any]] = flash_attn("fa3")


class TestFlashAttn3Deterministic(TestFlashAttn3):
    deterministic = keeps_bits = True


class TestFlashAttn4(OnGpu):
    component: ClassVar[Mapping[str, Any]] = flash_attn("fa4")


class TestFlashAttn4Deterministic(TestFlashAttn4):
    deterministic = keeps_bits = True


class TestTorchVarlen(OnGpu):
    component: ClassVar[Mapping[str, Any]] = flash_attn("torch")
    block_multiple = 256


class TestTorchVarlenDeterministic(TestTorchVarlen):
    deterministic = keeps_bits = True


class TestFlashInfer(OnGpu):
    component = "flashinfer"


class TestHybrid(OnGpu):
    component: ClassVar[Mapping[str, Any]] = {
        "name": "hybrid",
        "prefill": "flash_attn",
        "decode": "flashinfer",
    }


class TestHybridInPagesOf256(TestHybrid):
    block_multiple = 256


# ---------------------------------------------------------------------- graphs, waiting

TABLES = [
    *(pytest.param(flash_attn(name), id=name) for name in ("fa2", "fa3", "fa4", "torch")),
    pytest.param({"name": "flashinfer"}, id="flashinfer"),
]


def served(table: dict[str, Any], block_size: int) -> tuple[Any, Any]:
    """The component and a layer that it serves; the test is skipped where there is none."""
    of = replace(LAYER, device="cuda", block_size=block_size)
    made = make(table)
    reason = made.check(of)
    if reason:
        pytest.skip(reason)
    return made, of


def block_size_of(table: dict[str, Any]) -> int:
    return 256 if table.get("provider") in ("fa2", "torch") else 16


def some_tokens(count: int) -> list[torch.Tensor]:
    return [torch.randn(count, heads, 64, device="cuda").bfloat16() for heads in (4, 2, 2)]


def decode_batch(lengths: list[int], width: int, block_size: int) -> AttentionBatch:
    """One new token for each sequence; those of length 0 are rows without a sequence."""
    tables = torch.arange(width * len(lengths)).view(len(lengths), width).numpy()
    batch = attention_batch(tables, [(max(0, n - 1), 1) for n in lengths], block_size, "cuda")
    given = torch.tensor(lengths, dtype=torch.int32)
    slots = batch.slot_mapping.masked_fill(given.cuda() == 0, -1)
    return replace(batch, seq_lens=given.cuda(), seq_lens_host=given.numpy(), slot_mapping=slots)


@pytest.mark.parametrize("table", TABLES)
def test_a_graph_is_replayed_with_other_numbers(table: dict[str, Any]) -> None:
    size = block_size_of(table)
    made, of = served(table, size)
    if not isinstance(made, SupportsGraphCapture):
        pytest.skip("its plans are not captured")
    width = 1200 // size
    held = replace(decode_batch([0] * 8, width, size), max_seq_len=1100)
    cache = torch.randn(made.cache_shape(of, 8 * width), device="cuda").bfloat16()
    attention, parts = made.bind(of, cache), some_tokens(8)
    plan = made.plan_capture(held)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # kernels are compiled and chosen before the capture
        attention.forward(*parts, plan)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = attention.forward(*parts, plan)
    for lengths in ([1, 17, 300, 1100, 5, 0, 0, 0], [1100] * 8, [0, 3, 0, 700, 0, 64, 257, 512]):
        new = decode_batch(lengths, width, size)
        held.seq_lens.copy_(new.seq_lens)
        held.slot_mapping.copy_(new.slot_mapping)
        for old, other in zip(parts, some_tokens(8), strict=True):
            old.copy_(other)
        before = cache.clone()
        made.update_capture(plan, new)
        graph.replay()
        rows = [row for row, length in enumerate(lengths) if length]
        alone = attention_batch(
            held.block_tables_host[rows], [(lengths[row] - 1, 1) for row in rows], size, "cuda"
        )
        wanted = made.bind(of, before).forward(*(part[rows] for part in parts), made.plan(alone))
        torch.testing.assert_close(out[rows], wanted, atol=2e-2, rtol=2e-2)
        torch.testing.assert_close(cache, before, atol=0, rtol=0)


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("chunks", [[(700, 1), (3, 1)], [(700, 1), (0, 90), (33, 7)]], ids=str)
def test_a_step_does_not_wait_for_the_device(
    table: dict[str, Any], chunks: list[tuple[int, int]]
) -> None:
    size = block_size_of(table)
    made, of = served(table, size)
    width = -(-701 // size)
    tables = torch.arange(width * len(chunks)).view(len(chunks), width).numpy()
    cache = torch.zeros(made.cache_shape(of, width * len(chunks)), device="cuda").bfloat16()
    attention = made.bind(of, cache)
    parts = some_tokens(sum(new for _, new in chunks))
    batch = attention_batch(tables, chunks, size, "cuda")
    attention.forward(*parts, made.plan(batch))  # kernels may be compiled
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        attention.forward(*parts, made.plan(batch))
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_plans_made_ahead_do_not_disturb_one_another() -> None:
    """The host is many steps ahead of the device; each result is that of its own plan."""
    made, of = served({"name": "flashinfer"}, 16)
    cache = torch.randn(made.cache_shape(of, 256), device="cuda").bfloat16()
    attention, parts = made.bind(of, cache), some_tokens(4)
    slow = torch.randn(4096, 4096, device="cuda")

    def out(length: int) -> torch.Tensor:
        batch = decode_batch([length] * 4, 64, 16)
        result: torch.Tensor = attention.forward(*parts, made.plan(batch))
        return result

    wanted = []
    for length in range(100, 900, 100):
        wanted.append(out(length).clone())
        torch.cuda.synchronize()
    for _ in range(200):
        slow = torch.tanh(slow @ slow)
    ahead = [out(length) for length in range(100, 900, 100)]
    torch.cuda.synchronize()
    for one, other in zip(ahead, wanted, strict=True):
        torch.testing.assert_close(one, other, atol=0, rtol=0)
