"""Launches, refusals and messages of component ``cuda``; its results are tested for conformance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from paged_backends.attention.cuda_attention import CudaAttention
from paged_backends.kernels.build import CannotCompile
from paged_backends.kernels.cuda import targets
from paged_backends.kernels.cuda.kernel import GPU_GROUPS, Call, KeySplits, Variant
from paged_backends.kernels.cuda.targets import GpuTarget
from paged_backends.kernels.key_splits import choose_splits
from paged_core.interfaces.attention import AttentionBatch
from paged_core.interfaces.layer import LayerSpec
from paged_testing.attention_scene import Scene
from unit import attention_calls as calls
from unit.attention_calls import LAYER, check, check_capture
from unit.cuda_fakes import FakeDriver, FakeModule, Launch, fake_module

pytestmark = pytest.mark.heavy


MULTIPROCESSORS = 132
TILE_ROWS = 128


def make(name: str = "emulated", *, deterministic: bool = False) -> CudaAttention:
    made: CudaAttention = calls.make(name, deterministic=deterministic)
    return made


def on_fake_gpu(*, deterministic: bool = False) -> tuple[CudaAttention, FakeDriver]:
    """The component over the fake driver."""
    backend, target = make(deterministic=deterministic), FakeTarget()
    backend.target = target
    return backend, target.driver


def zeros(backend: CudaAttention, layer: LayerSpec = LAYER) -> torch.Tensor:
    """A cache of 400 blocks."""
    return torch.zeros(backend.cache_shape(layer, 400), dtype=torch.bfloat16)


class FakeTarget:
    """A GPU of the fake driver, with the kernels of all variants."""

    groups = GPU_GROUPS

    def __init__(self) -> None:
        self.driver = FakeDriver()

    def problem(self, device: torch.device, /) -> str | None:
        return None

    def multiprocessors(self, device: torch.device, /) -> int:
        return MULTIPROCESSORS

    def warpgroup_problem(self, device: torch.device, /) -> str | None:
        return None

    def module(self, variant: Variant, device: torch.device, /) -> FakeModule:
        rows = {variant.decode: variant.group, variant.tiles: TILE_ROWS}
        return fake_module(
            self.driver,
            *(
                f"{name} 128 51200 {rows.get(name, 0)} {len(bytes(Call()))}"
                for name in (variant.write, variant.decode, variant.combine, variant.tiles)
                if name is not None
            ),
        )


def launches_of(
    layer: LayerSpec, chunks: Sequence[tuple[int, int]], *, deterministic: bool = False
) -> list[Launch]:
    """Run one step over the fake driver; return what was launched."""
    backend, driver = on_fake_gpu(deterministic=deterministic)
    batch, tensors = step(layer, chunks)
    backend.bind(layer, zeros(backend, layer)).forward(*tensors, backend.plan(batch))
    return list(driver.launches())


def step(
    layer: LayerSpec, chunks: Sequence[tuple[int, int]]
) -> tuple[AttentionBatch, Sequence[torch.Tensor]]:
    batch = calls.batch_of(chunks, layer.block_size)
    tables = batch.block_tables_host % 400
    batch = replace(batch, block_tables=torch.from_numpy(tables), block_tables_host=tables)
    return batch, calls.tokens(layer, len(batch.slot_mapping))


# ---------------------------------------------------------------------- launches


def test_a_decode_is_split_and_combined() -> None:
    write, decode, combine = launches_of(LAYER, [(3000, 1), (40, 1)])
    assert (write.kernel, write.grid) == ("paged_write_bfloat16_auto", (2, 1, 1))
    splits = 47  # of 64 keys: there are thread blocks for more
    assert (decode.kernel, decode.grid) == ("paged_decode_bfloat16_64_16_auto", (2, 2, splits))
    assert (combine.kernel, combine.grid) == ("paged_combine_bfloat16", (2, 4, 1))
    assert {launch.stream for launch in (write, decode, combine)} == {7}
    call = Call.from_buffer_copy(decode.argument)
    assert call.num_splits == splits
    assert call.split
    assert (call.tokens, call.sequences, call.heads, call.kv_heads, call.dim) == (2, 2, 4, 2, 64)
    assert call.partials
    assert decode.argument == combine.argument == write.argument


DECODE, TILES = "paged_decode_bfloat16_64_16_auto", "paged_tiles_bfloat16_64_auto"
FLOAT32 = "paged_decode_float32_64_8_auto"
Grid = tuple[int, int, int]
LAUNCHES: dict[str, tuple[dict[str, Any], list[tuple[int, int]], bool, list[tuple[str, Grid]]]] = {
    "a large batch needs no splits": ({}, [(300, 1)] * 264, False, [(DECODE, (264, 2, 1))]),
    "chunks are computed in tiles": ({}, [(0, 100), (30, 200)], False, [(TILES, (6, 2, 1))]),
    "the longest that decodes has 31 keys": (
        *({}, [(0, 100), (30, 1)], False),
        [(DECODE, (2, 2, 1)), (TILES, (3, 2, 1))],
    ),
    "deterministic takes tiles alone": ({}, [(3000, 1), (0, 9)], True, [(TILES, (2, 2, 1))]),
    "ten heads of a group are two parts of eight": (
        *({"dtype": "float32", "num_heads": 20}, [(0, 9), (30, 1)], False),
        [(FLOAT32, (10, 4, 1))],
    ),
    "a window of ten splits": ({"sliding_window": 640}, [(3000, 1)], False, [(DECODE, (1, 2, 10))]),
    "as many keys": ({}, [(639, 1)], False, [(DECODE, (1, 2, 10))]),
    "a narrow window": ({"sliding_window": 130}, [(3000, 1)], False, [(DECODE, (1, 2, 1))]),
    "many sequences": ({}, [(0, 1)] * 66_000, False, [(DECODE, (66_000, 2, 1))]),
    "many tokens": ({}, [(0, 66_000)], True, [(TILES, (1032, 2, 1))]),
}
"""Changes of the layer, batch, ``deterministic``, and what attends. The last two have more
than 65,535 of what only the first dimension of a grid may have so many of."""


@pytest.mark.parametrize("name", LAUNCHES)
def test_what_is_launched(name: str) -> None:
    changes, chunks, deterministic, expected = LAUNCHES[name]
    launched = launches_of(replace(LAYER, **changes), chunks, deterministic=deterministic)
    write, *attend = [(launch.kernel, launch.grid) for launch in launched]
    assert write[1] == (sum(new for _, new in chunks), 1, 1)
    assert [one for one in attend if "combine" not in one[0]] == expected
    call = Call.from_buffer_copy(launched[-1].argument)
    assert call.rows_are_tokens == ("dtype" in changes)
    assert not deterministic or call.tiles_from == 1


def test_an_empty_batch_launches_nothing() -> None:
    backend, driver = on_fake_gpu()
    batch, tensors = step(LAYER, [(4, 1)])
    nothing = replace(
        batch,
        query_start=batch.query_start[:1],
        query_start_host=batch.query_start_host[:1],
        seq_lens=batch.seq_lens[:0],
        seq_lens_host=batch.seq_lens_host[:0],
        slot_mapping=batch.slot_mapping[:0],
        max_query_len=0,
        max_seq_len=0,
    )
    bound = backend.bind(LAYER, zeros(backend))
    out = bound.forward(*(tensor[:0] for tensor in tensors), backend.plan(nothing))
    assert out.shape == (0, 4, 64)
    assert not list(driver.launches())


def test_layers_of_a_kind_share_their_launches_and_scratch_memory() -> None:
    backend, driver = on_fake_gpu()
    batch, tensors = step(LAYER, [(3000, 1)])
    caches = [zeros(backend) for _ in range(2)]
    layers = [LAYER, replace(LAYER, soft_cap=2.0)]
    bound = [backend.bind(layer, cache) for layer, cache in zip(layers, caches, strict=True)]
    plan = backend.plan(batch)
    for one in bound:
        one.forward(*tensors, plan)
    made = [Call.from_buffer_copy(launch.argument) for launch in driver.launches()]
    assert made[0].partials == made[3].partials
    assert [call.keys for call in (made[0], made[3])] == [cache.data_ptr() for cache in caches]
    assert [call.soft_cap for call in (made[0], made[3])] == [0, 2]


def test_rows_that_do_not_begin_at_16_bytes_are_copied() -> None:
    backend, driver = on_fake_gpu()
    batch, (query, key, value) = step(LAYER, [(30, 1), (4, 1)])
    wide = torch.zeros(2, 4, 65, dtype=torch.bfloat16)
    tokens_apart = torch.zeros(2, 264 + 4, dtype=torch.bfloat16)[:, :256].view(2, 4, 64)
    heads_apart = torch.zeros(2, 8 * 33, dtype=torch.bfloat16).as_strided((2, 4, 64), (264, 66, 1))
    bound = backend.bind(LAYER, zeros(backend))
    for rows in (
        *(wide[..., :64], wide[..., 1:], query.float(), torch.cat([query] * 2, 2)[..., ::2]),
        *(tokens_apart, heads_apart),
    ):
        out = bound.forward(rows, key, value, backend.plan(batch))
        first, *_ = driver.launches()
        call = Call.from_buffer_copy(first.argument)
        assert call.query != rows.data_ptr()
        assert call.query % 16 == 0
        assert (call.query_token, call.query_head) == (4 * 64, 64)
        assert out.dtype is rows.dtype


# ---------------------------------------------------------------------- splits


@given(
    rows=st.integers(0, 300),
    blocks=st.integers(1, 64),
    longest=st.integers(0, 200_000),
    slots=st.integers(1, 800),
    fixed=st.booleans(),
)
def test_splits_reach_the_last_key_of_the_longest_row(
    rows: int, blocks: int, longest: int, slots: int, fixed: bool
) -> None:
    splits = KeySplits.choose(rows=rows, blocks=blocks, longest=longest, slots=slots, fixed=fixed)
    assert 1 <= splits.count <= splits.most <= 128
    # as the kernels do
    keys = max(splits.keys, ceil(ceil(longest / splits.most) / 16) * 16)
    assert splits.count * keys >= longest
    if fixed:
        assert (splits.keys, splits.most) == (256, 128), "whatever the batch"


@pytest.mark.parametrize(
    ("sequences", "longest", "expected"),
    [(64, 4096, 1), (8, 16_384, 8), (32, 4096, 2), (1, 131_072, 66), (256, 1024, 1), (3, 100, 1)],
)
def test_splits_of_known_batches(sequences: int, longest: int, expected: int) -> None:
    """8 key heads, on 132 multiprocessors that run four at once: 0.97 waves, or one in full."""
    assert choose_splits(sequences * 8, longest, 64, 4 * 132, unit=16) == expected


# ---------------------------------------------------------------------- graphs


def captured(chunks: Sequence[tuple[int, int]], longest: int) -> AttentionBatch:
    return replace(step(LAYER, chunks)[0], max_seq_len=longest)


@pytest.mark.parametrize("deterministic", [False, True])
def test_what_was_captured_serves_other_numbers(deterministic: bool) -> None:
    """The launches of one plan, made for the longest sequence, with tensors changed since."""
    scene = Scene(make(deterministic=deterministic), LAYER, [(250, 1), (3, 1), (77, 1), (0, 1)], 3)
    check_capture(scene, [1, 3], [0, 1, 2])


def test_launches_of_a_captured_batch_depend_on_its_longest_sequence_alone() -> None:
    grids = []
    for lengths in ([(2, 1), (5, 1)], [(900, 1), (0, 1)]):
        backend, driver = on_fake_gpu()
        batch, tensors = step(LAYER, [(1000, 1)] * 2)
        other = step(LAYER, lengths)[0]
        batch = replace(batch, seq_lens=other.seq_lens, seq_lens_host=other.seq_lens_host)
        backend.bind(LAYER, zeros(backend)).forward(*tensors, backend.plan_capture(batch))
        grids.append([launch.grid for launch in driver.launches()])
    assert grids[0] == grids[1]


@pytest.mark.parametrize(
    ("sequences", "length", "keys"),
    [(1, 4096, 64), (8, 4096, 512), (32, 4096, 2048), (64, 4096, 4096), (8, 16, 64)],
)
def test_a_captured_step_divides_the_keys_of_the_sequences_at_hand(
    sequences: int, length: int, keys: int
) -> None:
    """In a graph of as many rows for a far longer sequence."""
    backend, _ = on_fake_gpu()
    layer = replace(LAYER, num_heads=16, num_kv_heads=8)
    batch, tensors = step(layer, [(length - 1, 1)] * sequences)
    plan = backend.plan_capture(replace(batch, max_seq_len=131_072))
    backend.bind(layer, zeros(backend, layer)).forward(*tensors, plan)
    (launches,) = plan._launches.values()
    before = launches.splits, launches.split.data_ptr()
    backend.update_capture(plan, batch)
    assert launches.split.item() == keys
    assert (launches.splits, launches.split.data_ptr()) == before
    assert -(-length // keys) <= launches.splits.count


def test_in_deterministic_steps_keys_are_divided_whatever_is_at_hand() -> None:
    backend, _ = on_fake_gpu(deterministic=True)
    layer = replace(LAYER, dtype="float32")
    batch, tensors = step(layer, [(99, 1)] * 4)
    plan = backend.plan_capture(replace(batch, max_seq_len=131_072))
    backend.bind(layer, zeros(backend, layer).float()).forward(*tensors, plan)
    (launches,) = plan._launches.values()
    backend.update_capture(plan, replace(batch, max_seq_len=100_000))
    assert launches.split.item() == 256


def test_plans_of_all_sizes_share_one_piece_of_memory() -> None:
    backend, driver = on_fake_gpu()
    bound = backend.bind(LAYER, zeros(backend))
    for count in (4, 2, 1):
        batch, tensors = step(LAYER, [(2000, 1)] * count)
        bound.forward(*tensors, backend.plan_capture(batch))
    calls_ = [Call.from_buffer_copy(launch.argument) for launch in driver.launches()]
    assert len({call.partials for call in calls_}) == 1


def test_what_cannot_be_captured_is_refused() -> None:
    backend = make()
    with pytest.raises(ValueError, match="one token of each sequence, not 3"):
        backend.plan_capture(captured([(0, 3)], 9))
    batch = captured([(8, 1)], 9)
    with pytest.raises(ValueError, match="int32"):
        backend.plan_capture(replace(batch, seq_lens=batch.seq_lens.long()))
    plan = backend.plan_capture(batch)
    with pytest.raises(ValueError, match="has 10 tokens, and the graph was captured for 9"):
        backend.update_capture(plan, captured([(9, 1)], 10))


# ---------------------------------------------------------------------- refusals


def of_capability(*capability: int) -> Any:
    """``torch.cuda`` on a machine with one GPU."""
    return SimpleNamespace(
        is_available=lambda: True,
        current_device=lambda: 0,
        get_device_capability=lambda index: capability,
        get_device_name=lambda index: "Tesla T4",
    )


def test_a_gpu_and_kernels_that_do_not_serve_are_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch, "cuda", of_capability(7, 5))
    reason = make("cuda").check(replace(LAYER, device="cuda"))
    assert reason == "it needs compute capability 8.0 or more, and Tesla T4 has 7.5"
    monkeypatch.setattr(torch, "cuda", of_capability(9, 0))
    driver = FakeDriver()
    monkeypatch.setattr(targets, "Driver", lambda: driver)
    reasons = CannotCompile("there is no compiler")
    monkeypatch.setattr(targets, "load_variant", lambda *given: (_ for _ in ()).throw(reasons))
    backend = make("cuda")
    assert isinstance(backend.target, GpuTarget)
    assert backend.check(replace(LAYER, device="cuda")) == "there is no compiler"
    made = fake_module(driver, "another 1 0 0 1")
    monkeypatch.setattr(targets, "load_variant", lambda *given: made)
    assert "named symbol not found" in str(backend.check(replace(LAYER, device="cuda:0")))
    assert backend.target.module(Variant.of(LAYER), torch.device("cuda")) is made, "kept"
    made.declare({})


def test_a_cache_of_another_layout_is_refused() -> None:
    backend = make()
    shape = backend.cache_shape(LAYER, 3)
    with pytest.raises(ValueError, match=r"must have the shape \(3, 2, 2, 16, 64\), and has"):
        backend.bind(LAYER, torch.zeros(3, 2, 16, 2, 64))
    with pytest.raises(ValueError, match="contiguous in the cache"):
        backend.bind(LAYER, torch.zeros(shape).transpose(3, 4).contiguous().transpose(3, 4))


def test_the_cache_may_be_a_slice_of_a_larger_tensor() -> None:
    """As where all layers' blocks lie in one."""
    backend = make()
    scene = Scene(backend, LAYER, [(30, 1), (0, 5)], 1)
    whole = torch.full((len(scene.cache), 3, *scene.cache.shape[1:]), torch.nan).bfloat16()
    scene._writer = backend.bind(LAYER, whole[:, 1])
    scene._attention = backend.bind(LAYER, whole[:, 1])
    check(scene)
    assert whole[:, [0, 2]].isnan().all()


def test_a_batch_outside_of_the_cache_is_refused() -> None:
    backend = make()
    batch, tensors = step(LAYER, [(100, 1)] * 5)
    cache = torch.zeros(backend.cache_shape(LAYER, 6), dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="the batch names block 34, and the cache has 6"):
        backend.bind(LAYER, cache).forward(*tensors, backend.plan(batch))


# ---------------------------------------------------------------------- the tile of prefill


def tile_of(prefill_tile: str, layer: LayerSpec, target: object) -> tuple[str, list[Any]]:
    """Return the kernel of a chunk, and what is logged when it is chosen."""
    backend = calls.make({"name": "cuda", "prefill_tile": prefill_tile})
    backend.target = target
    batch, tensors = step(layer, [(0, 40)])
    cache = torch.zeros(
        backend.cache_shape(layer, 400),
        dtype=torch.bfloat16 if layer.kv_cache_dtype == "auto" else torch.uint8,
    )
    with capture_logs() as logs:
        bound = backend.bind(layer, cache)
    bound.forward(*tensors, backend.plan(batch))
    return [launch.kernel for launch in backend.target.driver.launches()][-1], logs


@pytest.mark.parametrize(
    ("tile", "changes", "kernel", "reason"),
    [
        ("mma", {}, "paged_tiles_bfloat16_64_auto", None),
        ("wgmma", {}, "paged_warpgroup_tiles_bfloat16_64_auto", None),
        ("wgmma", {"kv_cache_dtype": "fp8_e4m3"}, "paged_tiles_bfloat16_64_fp8_e4m3", "fp8_e4m3"),
        ("wgmma", {"head_dim": 96}, "paged_tiles_bfloat16_96_auto", "of 64 and 128, not for 96"),
    ],
)
def test_tiles_of_warpgroups_where_they_are_asked_for_and_there_are_any(
    tile: str, changes: dict[str, Any], kernel: str, reason: str | None
) -> None:
    found, logs = tile_of(tile, replace(LAYER, **changes), FakeTarget())
    assert found == kernel
    assert [(log["event"], log["wanted"], log["used"]) for log in logs] == (
        [("prefill_tile_replaced", "wgmma", "mma")] if reason else []
    )
    assert all(reason in log["reason"] for log in logs)


@pytest.mark.parametrize("capability", [(8, 0), (10, 0)])
def test_gpus_without_products_of_warpgroups(
    capability: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "cuda", of_capability(*capability))
    reason = GpuTarget().warpgroup_problem(torch.device("cuda", 0))
    assert "products of warpgroups need compute capability 9.0" in (reason or "")


def test_tiles_of_warpgroups_are_compiled_for_one_architecture() -> None:
    variant = Variant("bfloat16", 128, 16, "auto", warpgroups=True)
    decode, others = variant.cubins("sm_90")
    assert "--gpu-architecture=sm_90" in decode.flags
    assert {"--gpu-architecture=sm_90a", "-DPAGED_WGMMA=1"} <= {*others.flags}
    assert others.name != replace(variant, warpgroups=False).cubins("sm_90")[1].name
