"""The Triton kernels on a GPU: their contract, graphs, no waiting, and the engine's text."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from integration import tiny_models
from paged_backends.attention.settings import TritonSettings
from paged_backends.attention.triton_attention import TritonAttention
from paged_core import LLM, SamplingParams
from paged_core.engine.contexts import AttentionContext
from paged_core.interfaces.layer import LayerSpec
from paged_core.settings.schema import EngineSettings
from paged_testing import AttentionConformance
from paged_testing.attention_scene import Scene, attention_batch

LAYER = LayerSpec(
    num_heads=16,
    num_kv_heads=8,
    head_dim=128,
    scale=128**-0.5,
    dtype="bfloat16",
    device="cuda",
    block_size=16,
)


class OnGpu(AttentionConformance):
    component = "triton"
    device = "cuda"
    dtypes = ("float32", "bfloat16", "float16")
    max_seconds = 120  # each shape of a layer is compiled
    max_examples = 20


class TestTriton(OnGpu):
    pass


class TestTritonFloat8(OnGpu):
    dtypes = ("float32", "bfloat16", "float16")
    kv_cache_dtype = "fp8_e4m3"


class TestTritonInTiles(OnGpu):
    dtypes = ("bfloat16",)
    deterministic = True
    keeps_bits = True


def make(*, deterministic: bool = False) -> TritonAttention:
    context = AttentionContext(settings=EngineSettings(deterministic=deterministic))
    backend = TritonAttention(TritonSettings(), context)
    assert backend.check(LAYER) is None
    return backend


@pytest.mark.parametrize("changes", [{}, {"kv_cache_dtype": "fp8_e4m3"}, {"sliding_window": 700}])
@pytest.mark.parametrize("deterministic", [False, True])
def test_a_graph_is_replayed_with_other_numbers(
    changes: dict[str, Any], deterministic: bool
) -> None:
    """Captured for rows without sequences; replayed with some, then with others."""
    backend, layer = make(deterministic=deterministic), replace(LAYER, **changes)
    made = Scene(backend, layer, [(40, 1), (3000, 1), (9, 1), (511, 1)], 0)
    made.write_cached(range(4))
    batch = attention_batch(made.tables.numpy(), made.chunks, layer.block_size, "cuda")
    static = replace(
        batch,
        slot_mapping=torch.full_like(batch.slot_mapping, -1),
        seq_lens=torch.zeros_like(batch.seq_lens),
        block_tables=torch.zeros_like(batch.block_tables),
        max_seq_len=4096,
    )
    plan = backend.plan_capture(static)
    rows = [torch.cat(made.queries)]
    rows += [torch.cat([kept[-1:] for kept in part]) for part in (made.keys, made.values)]
    bound = backend.bind(layer, made.cache)
    bound.forward(*rows, plan)  # compiles
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = bound.forward(*rows, plan)
    kept = made.cache.clone()
    graph.replay()
    assert torch.equal(made.cache.view(torch.uint8), kept.view(torch.uint8))
    for members in ([1], [0, 2], [0, 1, 2, 3]):
        static.seq_lens.zero_()
        static.slot_mapping.fill_(-1)
        for field in ("seq_lens", "slot_mapping", "block_tables"):
            getattr(static, field)[members] = getattr(batch, field)[members]
        backend.update_capture(plan, static)
        graph.replay()
        for member in members:
            wanted = torch.from_numpy(made.expected(member))[0]
            torch.testing.assert_close(out[member].double().cpu(), wanted, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("chunks", [[(300, 1), (5, 1)], [(300, 1), (0, 90)]], ids=str)
def test_a_step_does_not_wait_for_the_device(chunks: list[tuple[int, int]]) -> None:
    backend = make()
    made = Scene(backend, LAYER, chunks, 1)
    batch = attention_batch(made.tables.numpy(), chunks, LAYER.block_size, "cuda")
    count = sum(new for _, new in chunks)
    rows = [torch.zeros(count, n, 128, device="cuda", dtype=torch.bfloat16) for n in (16, 8, 8)]
    bound = backend.bind(LAYER, made.cache)
    bound.forward(*rows, backend.plan(batch))  # compiles
    torch.cuda.set_sync_debug_mode("error")
    try:
        bound.forward(*rows, backend.plan(batch))
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("name", ["llama", "gemma2"])
@pytest.mark.parametrize(
    "changes",
    [
        {"num_blocks": 11, "scheduler": {"max_num_batched_tokens": 7}},
        {"num_blocks": 11, "preemption": "swap"},
        {"num_blocks": 400, "kv_cache_dtype": "fp8_e4m3"},
    ],
    ids=str,
)
def test_text_is_that_of_torch(name: str, changes: dict[str, Any], tmp_path: Path) -> None:
    folder = str(tiny_models.save(name, tmp_path))
    greedy = SamplingParams(max_tokens=8, ignore_eos=True)
    texts = []
    for attention in ("torch", "triton"):
        settings = {"block_size": 4, "max_model_len": 44, "device": "cuda", **changes}
        with LLM(folder, attention=attention, dtype="float32", **settings) as llm:
            outputs = llm.generate(tiny_models.PROMPTS, greedy)
            texts.append([output.outputs[0].token_ids for output in outputs])
    assert texts[0] == texts[1]
