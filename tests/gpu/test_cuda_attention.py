"""The kernels of component ``cuda`` on a GPU: the contract, graphs, and nothing that waits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from paged_backends.attention.cuda_attention import CudaAttention
from paged_backends.attention.settings import CudaSettings
from paged_backends.kernels.build import CannotCompile
from paged_backends.kernels.cuda.driver import Context, Driver
from paged_backends.kernels.cuda.kernel import BlockCopier, Call, Variant
from paged_backends.kernels.cuda.targets import GpuTarget, architecture
from paged_backends.kernels.cuda.toolkit import Nvcc, Nvrtc, load_variant
from paged_core.engine.contexts import AttentionContext
from paged_core.interfaces.attention import AttentionBackend
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


def make(*, deterministic: bool = False) -> CudaAttention:
    context = AttentionContext(settings=EngineSettings(deterministic=deterministic))
    return CudaAttention(CudaSettings(), context)


@contextmanager
def no_waiting() -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


# ---------------------------------------------------------------------- the contract


class OnGpu(AttentionConformance):
    component = "cuda"
    device = "cuda"
    dtypes = ("float32", "bfloat16", "float16")
    head_dims = (8, 16, 64, 80, 96, 128, 256)
    max_examples = 40
    max_seconds = 120

    def make(self) -> AttentionBackend:
        """Fail, not skip, where the kernels do not compile."""
        try:
            return super().make()
        except pytest.skip.Exception as skipped:
            pytest.fail(f"it cannot serve here: {skipped}")


class TestCudaOnGpu(OnGpu):
    pass


class TestCudaOnGpuDeterministic(OnGpu):
    deterministic = True
    keeps_bits = True


class TestCudaOnGpuFloat8(OnGpu):
    dtypes: ClassVar[Any] = ("float32", "bfloat16", "float16")
    kv_cache_dtype = "fp8_e4m3"


@pytest.mark.parametrize("kind", [Nvcc, Nvrtc])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_what_each_compiler_makes_can_be_loaded(
    kind: type[Nvcc | Nvrtc],
    dtype: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    try:
        compiler = kind.find()
    except CannotCompile as error:
        pytest.skip(str(error))
    monkeypatch.setenv("PAGED_CORE_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
    torch.zeros(1, device="cuda")
    variant = Variant(dtype, 128, 2, "auto")
    module = load_variant(variant, Context(Driver(), 0), architecture(0), [compiler])
    for name in (variant.write, variant.decode, variant.combine, variant.tiles):
        if name is not None:
            assert module.kernel(name, len(bytes(Call()))).geometry.threads


# ---------------------------------------------------------------------- graphs, waiting


def scene_of(backend: CudaAttention, layer: LayerSpec, lengths: list[int]) -> Scene:
    scene = Scene(backend, layer, [(length, 1) for length in lengths], 3)
    scene.write_cached(range(len(lengths)))
    return scene


def last_rows(scene: Scene) -> list[torch.Tensor]:
    """The query, key and value of each sequence's last token."""
    return [
        torch.cat([one[-1:] for one in kept]) for kept in (scene.queries, scene.keys, scene.values)
    ]


@pytest.mark.parametrize("kv_cache_dtype", ["auto", "fp8_e4m3"])
@pytest.mark.parametrize("deterministic", [False, True])
def test_a_graph_is_replayed_with_other_numbers(deterministic: bool, kv_cache_dtype: Any) -> None:
    """Captured with rows that have no sequence; replayed for two batches of other lengths."""
    backend = make(deterministic=deterministic)
    layer = replace(LAYER, kv_cache_dtype=kv_cache_dtype)
    assert backend.check(layer) is None
    scene = scene_of(backend, layer, [2000, 3, 77, 511])
    count, width = 6, scene.tables.shape[1]
    batch = attention_batch(np.zeros((count, width), np.int32), [(0, 1)] * count, 16, "cuda")
    batch = replace(batch, max_seq_len=width * 16)
    batch.slot_mapping.fill_(-1)
    batch.seq_lens.fill_(0)
    rows = [torch.zeros(count, heads, 128, device="cuda").bfloat16() for heads in (16, 8, 8)]
    plan, bound = backend.plan_capture(batch), backend.bind(layer, scene.cache)
    before = scene.cache.clone()
    bound.forward(*rows, plan)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = bound.forward(*rows, plan)
    graph.replay()
    assert torch.equal(scene.cache.view(torch.uint8), before.view(torch.uint8))
    for members in ([0, 1, 2, 3], [3, 2]):
        made = attention_batch(
            scene.tables[members].numpy(), [scene.chunks[index] for index in members], 16, "cuda"
        )
        batch.slot_mapping.fill_(-1)
        batch.seq_lens.fill_(0)
        batch.slot_mapping[: len(members)] = made.slot_mapping
        batch.seq_lens[: len(members)] = made.seq_lens
        batch.block_tables[: len(members)] = made.block_tables
        for held, new in zip(rows, last_rows(scene), strict=True):
            held[: len(members)] = new[members]
        backend.update_capture(plan, made)
        graph.replay()
        for place, index in enumerate(members):
            got = out[place : place + 1].double().cpu().numpy()
            np.testing.assert_allclose(got, scene.expected(index), atol=2e-2, rtol=2e-2)


def test_a_step_does_not_wait_for_the_device() -> None:
    backend = make()
    scene = scene_of(backend, LAYER, [700, 5, 90])
    chunks = [*scene.chunks[:2], (80, 11)]
    batch = attention_batch(scene.tables.numpy(), chunks, 16, "cuda")
    count = sum(new for _, new in chunks)
    rows = [torch.zeros(count, heads, 128, device="cuda").bfloat16() for heads in (16, 8, 8)]
    bound = backend.bind(LAYER, scene.cache)
    bound.forward(*rows, backend.plan(batch))
    with no_waiting():
        bound.forward(*rows, backend.plan(batch))


def test_another_stream_is_taken_when_it_is_current() -> None:
    backend = make()
    scene = scene_of(backend, LAYER, [300, 40])
    batch = attention_batch(scene.tables.numpy(), scene.chunks, 16, "cuda")
    bound, rows = backend.bind(LAYER, scene.cache), last_rows(scene)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)  # a launch in another stream would end before
        rows = [row + 0 for row in rows]
        out = bound.forward(*rows, backend.plan(batch))
    stream.synchronize()
    for index in range(2):
        got = out[index : index + 1].double().cpu().numpy()
        np.testing.assert_allclose(got, scene.expected(index), atol=2e-2, rtol=2e-2)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there is one CUDA device")
def test_a_layer_computes_on_its_own_device() -> None:
    backend = make()
    layer = replace(LAYER, device="cuda:1")
    assert backend.check(layer) is None
    scene = Scene(backend, layer, [(300, 1), (0, 20)], 3)
    for index, out in enumerate(scene.run([0, 1])):
        np.testing.assert_allclose(
            out.double().numpy(), scene.expected(index), atol=2e-2, rtol=2e-2
        )


@pytest.mark.parametrize("pinned", [False, True])
def test_blocks_of_all_layers_are_copied_in_one_launch(pinned: bool) -> None:
    """Within the device, and to pinned memory of the host and back."""
    target = GpuTarget()
    device = torch.device("cuda", 0)
    copier = BlockCopier(target.module(Variant.of(LAYER), device), device)
    caches = [torch.randn(50, 2, 8, 16, 128, device=device).bfloat16() for _ in range(5)]
    others = [
        torch.zeros(50, 2, 8, 16, 128, dtype=torch.bfloat16, pin_memory=True) if pinned else cache
        for cache in caches
    ]
    wanted = [cache[[3, 4, 5]].cpu() for cache in caches]
    copier.copy(caches, [3, 4, 5], others, [4, 5, 6])
    torch.cuda.synchronize()
    for other, expected in zip(others, wanted, strict=True):
        assert torch.equal(other[4:7].cpu(), expected)
    copier.copy(others, [4, 5, 6], caches, [10, 11, 12])
    for cache, expected in zip(caches, wanted, strict=True):
        assert torch.equal(cache[10:13].cpu(), expected)
