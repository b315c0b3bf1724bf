"""Launches for GPUs, splits and captures of ``triton``, beside its conformance class."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from triton.runtime import interpreter

from paged_backends.attention.cache import head_major_shape, zeros
from paged_backends.attention.float8 import pack
from paged_backends.kernels.key_splits import MAX_SPLITS
from paged_backends.kernels.triton import availability
from paged_backends.kernels.triton.availability import INTERPRETER, is_interpreted
from paged_backends.kernels.triton.cache import decode
from paged_core.plugins.registry import Registry
from paged_testing.attention_scene import attention_batch

if not is_interpreted():
    pytest.skip("there is a GPU, and Triton interprets nothing", allow_module_level=True)

from paged_backends.attention import triton_layer
from paged_backends.attention.triton_layer import Gpu
from unit.attention_calls import check, check_capture, make
from unit.triton_kernels import A100, FLOAT8, H200, LAYER, RTX_3090, LaunchedFor, scene

pytestmark = [pytest.mark.heavy, pytest.mark.usefixtures("watched_accesses")]

# ------------------------------------------------------------------ launches for GPUs

LAUNCHES: dict[str, tuple[Any, dict[str, Any]]] = {
    "a tile in a block": (H200, {"block_size": 128}),
    "float8": (H200, {"kv_cache_dtype": "fp8_e4m3"}),
    "blocks of 16": (H200, {}),
    "blocks of 5": (H200, {"block_size": 5, "num_heads": 6, "num_kv_heads": 2}),
    "window and cap": (H200, {"sliding_window": 90, "soft_cap": 2.0, "block_size": 64}),
    "float32": (H200, {"dtype": "float32", "head_dim": 80}),
    "float8, float16": (H200, {"kv_cache_dtype": "fp8_e4m3", "dtype": "float16"}),
    "A100, float8": (A100, {"kv_cache_dtype": "fp8_e4m3"}),
    "RTX 3090": (RTX_3090, {"head_dim": 256}),
}
"""All but the first two are of the long run."""


@pytest.mark.parametrize(
    ("gpu", "changes"),
    [
        pytest.param(*launch, id=name, marks=[pytest.mark.long] * (place > 1))
        for place, (name, launch) in enumerate(LAUNCHES.items())
    ],
)
def test_what_is_launched_on_a_gpu_equals_dense_attention(
    gpu: Gpu, changes: dict[str, Any]
) -> None:
    layer = replace(LAYER, **{"dtype": "bfloat16", "num_heads": 2, "num_kv_heads": 1, **changes})
    check(scene(LaunchedFor(gpu), layer, [(530, 1), (60, 70), (0, 3)]))


def test_float8_is_stored_as_the_reference_stores_it() -> None:
    layer = replace(FLOAT8, head_dim=48, num_heads=2, num_kv_heads=1, block_size=8)
    rows = torch.randn(8, 1, 48).to(torch.bfloat16)
    rows *= torch.tensor([1e-30, 1e-6, 0.0, 1.0, 448.0, 449.0, 1e6, 1e30])[:, None, None]
    rows[3, 0, :4] = torch.tensor([float("inf"), float("nan"), 2.0**-9, -(2.0**-16)])
    rows[4, 0, 0] = 480 * 448.0
    backend = LaunchedFor(None)
    cache = torch.zeros(backend.cache_shape(layer, 2), dtype=torch.uint8)
    plan = backend.plan(attention_batch(np.array([[1]]), [(0, 8)], 8))
    backend.bind(layer, cache).write(rows, rows.neg(), plan)
    for stored, written in zip(cache[1, :, 0], (rows, rows.neg()), strict=True):
        wanted = pack(written[:, 0])
        scales = stored[8 * 48 : 8 * 48 + 8]
        # the reference gives a row with a NaN the least scale
        kept = [row for row in range(8) if row != 3]
        assert torch.equal(scales[kept], wanted[kept, -1])
        numbers = stored[: 8 * 48].view(8, 48)
        assert torch.equal(numbers[kept], wanted[kept, :-1])
        assert (numbers[3, :2] == 0x7F).all()
    assert not cache[0].any()


@triton.jit
def decode_all(bytes_, numbers, NATIVE: tl.constexpr):  # noqa: N803 - it is a constant
    at = tl.arange(0, 256)
    tl.store(numbers + at, decode(tl.load(bytes_ + at), tl.float32, NATIVE))


@pytest.mark.parametrize("native", [True, False])
def test_every_byte_of_float8_is_read_as_torch_reads_it(native: bool) -> None:
    bytes_, numbers = torch.arange(256, dtype=torch.uint8), torch.empty(256)
    decode_all[(1,)](bytes_, numbers, NATIVE=native)
    wanted = bytes_.view(torch.float8_e4m3fn).float()
    # the interpreter takes the two NaN for numbers where a GPU has instructions
    known = wanted.isfinite() if native else torch.full((256,), True)
    torch.testing.assert_close(numbers[known], wanted[known], rtol=0, atol=0, equal_nan=True)


# ------------------------------------------------------------------ grids


@pytest.mark.parametrize("chunks", [[(0, 66_000)], [(0, 1)] * 66_000], ids=["one", "many"])
@pytest.mark.parametrize("deterministic", [False, True])
def test_tokens_and_sequences_are_in_the_first_dimension_of_a_grid(
    chunks: list[tuple[int, int]], deterministic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others end at 65,535."""
    grids: list[tuple[int, ...]] = []

    class Launched:
        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
            grids.append(grid)
            return lambda *args, **named: None

    for name in ("write_tokens", "attend_tiles", "attend_splits", "merge_splits"):
        monkeypatch.setattr(triton_layer, name, Launched())
    made = LaunchedFor(H200, deterministic=deterministic)
    bound = made.bind(LAYER, torch.zeros(made.cache_shape(LAYER, 1)))
    tables = np.zeros((len(chunks), -(-chunks[0][1] // 16)), np.int32)
    rows = [torch.zeros(66_000, heads, 32) for heads in (4, 2, 2)]
    bound.forward(*rows, made.plan(attention_batch(tables, chunks, 16)))
    assert len(grids) == 2
    assert all(max(grid[1:]) <= MAX_SPLITS for grid in grids)


# ------------------------------------------------------------------ deterministic


@pytest.mark.parametrize("chunk", [(18, 1), (18, 3)])
def test_places_beyond_two_billion_numbers(
    chunk: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    # it copies the whole cache back from where it is already
    monkeypatch.setattr(interpreter.GridExecutor, "_restore_args_dev", lambda *_: None)
    backend = LaunchedFor(None)
    spec = replace(LAYER, num_heads=2, num_kv_heads=1, dtype="bfloat16")
    per_block = prod(backend.cache_shape(spec, 1))
    shape = backend.cache_shape(spec, 2**31 // per_block + 3)
    cache = zeros(shape, torch.bfloat16, "cpu")  # of which little is touched
    bound, found = backend.bind(spec, cache), list[torch.Tensor]()
    query, key, value = (
        torch.randn(sum(chunk), heads, spec.head_dim).to(torch.bfloat16) for heads in (2, 1, 1)
    )
    for first in (0, len(cache) - 2):
        table = np.array([[first, first + 1]])
        for cached, tokens in ((0, chunk[0]), chunk):
            batch = attention_batch(table, [(cached, tokens)], spec.block_size)
            rows = slice(cached, cached + tokens)
            out = bound.forward(query[rows], key[rows], value[rows], backend.plan(batch))
        found.append(out)
    assert torch.equal(*found)


def test_in_tiles_bits_depend_neither_on_the_batch_nor_on_chunks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    product = np.matmul

    def by_rows(left: Any, right: Any, **options: Any) -> Any:
        """Multiply row by row: BLAS may add up in an order that depends on the number of rows."""
        return np.stack([product(row, right, **options) for row in left])

    monkeypatch.setattr(np, "matmul", by_rows)  # by which the interpreter multiplies
    backend = LaunchedFor(None, deterministic=True)
    chunks = [(290, 1), (260, 31), (0, 291), (7, 1)]
    made = scene(backend, LAYER, chunks)
    for kept in (made.keys, made.values):
        kept[1] = kept[2] = kept[0]
    made.queries[1][-1] = made.queries[2][-1] = made.queries[0][-1]
    together = made.run(range(4))
    assert torch.equal(together[0][-1], together[1][-1])
    assert torch.equal(together[0][-1], together[2][-1])
    for index in (0, 3):
        assert torch.equal(made.run([index])[0], together[index])


# ------------------------------------------------------------------ captures


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_captured_plan_follows_the_numbers_of_its_tensors(deterministic: bool) -> None:
    backend = LaunchedFor(H200, deterministic=deterministic)
    layer = replace(LAYER, num_heads=2, num_kv_heads=1)
    made = scene(backend, layer, [(40, 1), (330, 1), (9, 1)])
    check_capture(made, [1], [0, 2], [0, 1, 2], longest=2000)


# ------------------------------------------------------------------ what is refused


def test_a_batch_outside_of_the_cache_is_refused() -> None:
    made = make("triton")
    bound = made.bind(LAYER, torch.zeros(head_major_shape(LAYER, 3)))
    rows = [torch.zeros(1, heads, 32) for heads in (4, 2, 2)]
    with pytest.raises(ValueError, match="block 3, and the cache has 3"):
        bound.forward(*rows, made.plan(attention_batch(np.array([[3]]), [(4, 1)], 16)))


def test_what_it_needs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert availability.unavailable_reason() is None
    assert Registry.discover().candidates("attention")[-1].name == "triton", "the last resort"
    monkeypatch.delenv(INTERPRETER)
    ranks = {part.name: part.rank for part in Registry.discover().candidates("attention")}
    assert ranks["triton"] > ranks["cpu"], "not where there is a GPU"
    on_gpu = replace(LAYER, device="cuda:0")
    for capability, of, said in (
        ((9, 0), LAYER, "TRITON_INTERPRET=1"),
        ((9, 0), replace(LAYER, device="mps"), "the model is on mps"),
        ((7, 5), on_gpu, "8.0 or more, and cuda:0 has 7.5"),
        ((8, 0), on_gpu, "None"),
    ):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, found=capability: found)
        assert said in str(make("triton").check(of))
    for problem in ("there is no NVIDIA GPU here", None):
        monkeypatch.setattr(availability, "gpu_problem", lambda said=problem: said)
        assert str(availability.unavailable_reason()).startswith(str(problem))
    monkeypatch.setattr(availability, "find_spec", lambda _: None)
    assert "pip install 'paged-core[gpu]'" in str(availability.unavailable_reason())


class NotLaunched:
    """Stands for a kernel."""

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return lambda *args, **named: None


@pytest.mark.parametrize(
    ("sequences", "length", "tiles"), [(1, 4096, 4), (8, 4096, 16), (64, 4096, 64), (8, 16, 4)]
)
def test_a_captured_step_splits_the_keys_of_the_sequences_at_hand(
    sequences: int, length: int, tiles: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a graph for a far longer sequence; the memory of the splits is that of other plans."""
    for name in ("write_tokens", "attend_splits", "merge_splits"):
        monkeypatch.setattr(triton_layer, name, NotLaunched())
    layer = replace(LAYER, dtype="bfloat16", head_dim=128, num_heads=16, num_kv_heads=8)
    backend = LaunchedFor(H200)
    bound = backend.bind(layer, torch.zeros(backend.cache_shape(layer, 1), dtype=torch.bfloat16))
    rows = [torch.zeros(sequences, heads, 128, dtype=torch.bfloat16) for heads in (16, 8, 8)]
    batch = attention_batch(np.zeros((sequences, 256), np.int32), [(length - 1, 1)] * sequences, 16)
    plan = backend.plan_capture(replace(batch, max_seq_len=131_072))
    bound.forward(*rows, plan)
    (splits,) = plan._splits.values()
    backend.update_capture(plan, batch)
    assert splits.least.item() == tiles
    assert -(-length // (64 * tiles)) <= splits.count


def test_the_driver_says_how_many_programs_of_what_was_compiled_run_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []
    monkeypatch.setattr(triton_layer, "resident_blocks", lambda *sizes: asked.append(sizes) or 3)
    sizes = SimpleNamespace(num_warps=4, shared=51_200)
    kernel = SimpleNamespace(function=None, metadata=sizes)
    kernel._init_handles = lambda: setattr(kernel, "function", 77)
    assert Gpu((9, 0), 132).resident(lambda: kernel) == 3
    assert asked == [(77, 128, 51_200)]
