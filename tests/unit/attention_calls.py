"""Layers, backends, batches and scenes for tests of attention components."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from emulation.cuda_module import EMULATED_CUDA
from paged_core.engine.contexts import AttentionContext
from paged_core.interfaces.attention import AttentionBackend, AttentionBatch, SupportsGraphCapture
from paged_core.interfaces.layer import LayerSpec
from paged_core.settings.schema import EngineSettings
from paged_testing import AttentionConformance
from paged_testing.attention_scene import Scene, attention_batch
from paged_testing.engines import registry_with

LAYER = LayerSpec(
    num_heads=4,
    num_kv_heads=2,
    head_dim=64,
    scale=0.125,
    dtype="bfloat16",
    device="cpu",
    block_size=16,
)


def layer(**changes: Any) -> LayerSpec:
    """Return a small layer with ``changes``."""
    return replace(LAYER, **changes)


def make(chosen: str | dict[str, Any], **settings: Any) -> Any:
    """Return the component of this name, or of this table of settings, made as an engine does."""
    table = {"name": chosen} if isinstance(chosen, str) else chosen
    registry = registry_with(EMULATED_CUDA)
    component = registry.get("attention", table["name"])
    return component.load()(
        component.settings.model_validate(table),
        AttentionContext(settings=EngineSettings(**settings), registry=registry),
    )


def check(scene: Scene, members: Sequence[int] | None = None, **options: Any) -> None:
    """Run these sequences of a scene, or all, and compare with dense attention."""
    chosen = range(len(scene.chunks)) if members is None else members
    AttentionConformance().check_outputs(scene, scene.run(chosen, **options), chosen)


def batch_of(
    chunks: Sequence[tuple[int, int]], block_size: int = 16, device: str = "cpu"
) -> AttentionBatch:
    """Return sequences with so many cached and new tokens, in blocks of their own."""
    width = max(-(-sum(chunk) // block_size) for chunk in chunks)
    tables = np.arange(width * len(chunks)).reshape(len(chunks), width)
    return attention_batch(tables, chunks, block_size, device)


def run(backend: AttentionBackend, layer: LayerSpec, batch: AttentionBatch) -> torch.Tensor:
    """Attend over a cache of random numbers."""
    cache = torch.randn(backend.cache_shape(layer, int(batch.block_tables_host.max()) + 1)).to(
        getattr(torch, layer.dtype)
    )
    parts = tokens(layer, len(batch.slot_mapping))
    return backend.bind(layer, cache).forward(*parts, backend.plan(batch))


def tokens(layer: LayerSpec, count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return random queries, keys and values."""
    dtype = getattr(torch, layer.dtype)
    query, key, value = (
        torch.randn(count, heads, layer.head_dim).to(layer.device, dtype)
        for heads in (layer.num_heads, layer.num_kv_heads, layer.num_kv_heads)
    )
    return query, key, value


def repeated(work: Callable[[], Any], device: str) -> Callable[[], Any]:
    """Return what does ``work`` again: on a GPU a CUDA graph of it, with the same result tensor."""
    if torch.device(device).type != "cuda":
        return work
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # kernels are compiled and chosen before the capture
        work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = work()

    def replay() -> Any:
        graph.replay()
        return made

    return replay


def check_capture(scene: Scene, *batches: Sequence[int], longest: int = 0) -> None:
    """Capture a decode step of rows that have no sequence; replay it with these sequences of the
    scene in their rows. The other rows write nothing and disturb none. ``longest``: what the
    capture says of lengths, if that is more than the block tables have room for."""
    backend: Any = scene.backend
    assert isinstance(backend, SupportsGraphCapture)
    members, layer = range(len(scene.chunks)), scene.layer
    scene.write_cached(members)
    whole = attention_batch(scene.tables.numpy(), scene.chunks, layer.block_size, layer.device)
    held = replace(
        whole,
        seq_lens=torch.zeros_like(whole.seq_lens),
        slot_mapping=torch.full_like(whole.slot_mapping, -1),
        block_tables=torch.zeros_like(whole.block_tables),
        seq_lens_host=np.zeros_like(whole.seq_lens_host),
        block_tables_host=np.zeros_like(whole.block_tables_host),
        max_seq_len=max(longest, whole.block_tables.shape[1] * layer.block_size),
    )
    rows = scene.inputs(members)
    plan, bound = backend.plan_capture(held), backend.bind(layer, scene.cache)
    replay = repeated(lambda: bound.forward(*rows, plan), layer.device)
    plain = scene.cache.clone()
    replay()
    assert torch.equal(scene.cache.view(torch.uint8), plain.view(torch.uint8))
    for batch in batches:
        held.seq_lens.zero_()
        held.slot_mapping.fill_(-1)
        for name in ("seq_lens", "slot_mapping", "block_tables"):
            getattr(held, name)[batch] = getattr(whole, name)[batch]
        lengths = held.seq_lens.cpu().numpy()
        tables = held.block_tables.cpu().numpy()
        new = replace(held, seq_lens_host=lengths, block_tables_host=tables)
        backend.update_capture(plan, replace(new, max_seq_len=int(lengths.max())))
        out = replay().cpu()
        outputs = [out[row : row + 1] for row in batch]
        AttentionConformance().check_outputs(scene, outputs, batch)
    written = sorted({row for batch in batches for row in batch})
    alone = attention_batch(
        scene.tables[written].numpy(),
        [scene.chunks[row] for row in written],
        layer.block_size,
        layer.device,
    )
    backend.bind(layer, plain).forward(*(part[written] for part in rows), backend.plan(alone))
    assert torch.equal(scene.cache.view(torch.uint8), plain.view(torch.uint8))
