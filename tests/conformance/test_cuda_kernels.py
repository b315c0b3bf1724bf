"""Single CUDA kernels: what no batch of the conformance class shows. They are emulated on the CPU
here, and run on a GPU by tests/gpu/test_cuda_kernels.py."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from emulation.cuda_module import EmulatedTarget, unavailable_reason
from paged_backends.attention import float8
from paged_backends.attention.cache import head_major_shape
from paged_backends.kernels.cuda.kernel import (
    Argument,
    BlockCopier,
    Call,
    Grid,
    Kernel,
    Variant,
    divider,
)
from paged_backends.kernels.cuda.targets import Target
from paged_core.interfaces.layer import KVCacheDtype, LayerSpec
from properties.covering import pairwise

pytestmark = pytest.mark.heavy


DTYPES = ("float32", "bfloat16", "float16")
MODES = ("float32 decode", "bfloat16 decode", "float16 decode", "bfloat16 tiles", "float16 tiles")
"""Types, and the kernels that attend in them."""


def layer(dtype: str, cache: KVCacheDtype = "auto", **changes: Any) -> LayerSpec:
    usual: dict[str, Any] = {
        "num_heads": 2, "num_kv_heads": 1, "head_dim": 64, "scale": 0.125, "block_size": 16,
    }  # fmt: skip
    return LayerSpec(dtype=dtype, device="cpu", kv_cache_dtype=cache, **{**usual, **changes})


@dataclass
class Launcher:
    """Launches kernels of a layer over a cache."""

    target: Target
    layer: LayerSpec
    cache: Tensor

    @property
    def variant(self) -> Variant:
        return Variant.of(self.layer, self.target.groups)

    def kernel(self, name: str) -> Kernel:
        module = self.target.module(self.variant, self.cache.device)
        return module.kernel(name, ctypes.sizeof(Call))

    def _call(self, **fields: Any) -> Call:
        factor, shift = divider(self.layer.block_size)
        return Call(
            keys=self.cache[:, 0].data_ptr(), values=self.cache[:, 1].data_ptr(),
            cache_block=self.cache.stride(0), cache_head=self.cache.stride(2),
            heads=self.layer.num_heads, kv_heads=self.layer.num_kv_heads,
            dim=self.layer.head_dim, block_size=self.layer.block_size,
            block_factor=factor, block_shift=shift, scale=self.layer.scale, **fields,
        )  # fmt: skip

    def _launch(self, name: str, grid: Grid, call: Call) -> None:
        module = self.target.module(self.variant, self.cache.device)
        self.kernel(name).launch(grid, Argument(call), module.stream())

    def write(self, key: Tensor, value: Tensor, slots: Tensor) -> None:
        """Write rows [T, num_kv_heads, head_dim] into their slots."""
        key, value, slots = (tensor.to(self.cache.device) for tensor in (key, value, slots))
        call = self._call(
            key=key.data_ptr(), value=value.data_ptr(), slots=slots.data_ptr(), tokens=len(key),
            key_token=key.stride(0), key_head=key.stride(1),
            value_token=value.stride(0), value_head=value.stride(1),
        )  # fmt: skip
        self._launch(self.variant.write, (len(key), 1, 1), call)

    def attend(
        self, query: Tensor, length: int, table: Tensor, in_tiles: bool, before: int = 0
    ) -> Tensor:
        """Return attention of one sequence's last tokens [T, num_heads, head_dim], on the CPU.

        Args:
            before: tokens of another sequence before them, which see no key. If there are any, the
                first key head is computed alone.
        """
        device, heads, kv_heads = self.cache.device, self.layer.num_heads, self.layer.num_kv_heads
        count, group = len(query), heads // kv_heads
        tokens = before + count
        starts = torch.tensor([0, before, tokens], dtype=torch.int32, device=device)
        lengths = torch.tensor([0, length], dtype=torch.int32, device=device)
        tables = torch.stack([torch.zeros_like(table), table]).to(device)
        batch, out = (
            torch.empty((tokens, *query.shape[1:]), dtype=query.dtype, device=device)
            for _ in range(2)
        )
        batch[before:], out[before:] = query, torch.nan
        split = torch.full((1,), 256, dtype=torch.int32, device=device)
        call = self._call(
            query=batch.data_ptr(), out=out.data_ptr(), query_start=starts.data_ptr(),
            lengths=lengths.data_ptr(), tables=tables.data_ptr(), table_width=len(table),
            query_token=batch.stride(0), query_head=batch.stride(1), tokens=tokens,
            sequences=2, rows_are_tokens=not before, tiles_from=1, split=split.data_ptr(),
            max_splits=1, num_splits=1,
        )  # fmt: skip
        if in_tiles:
            name = self.variant.tiles
            assert name is not None
            tiles = tokens * group // self.kernel(name).geometry.rows + 2
            self._launch(name, (tiles, 1 if before else kv_heads, 1), call)
        else:
            parts = -(-group // self.variant.group)
            rows = 2 if before else count
            self._launch(self.variant.decode, (rows, (1 if before else kv_heads) * parts, 1), call)
        return out[before:].cpu()


def float8_rows(spec: LayerSpec, cache: Tensor) -> tuple[Tensor, Tensor]:
    """Return the numbers [blocks, 2, num_kv_heads, block_size, head_dim] and the scales' bytes."""
    numbers = spec.block_size * spec.head_dim
    rows = cache[..., :numbers].unflatten(-1, (spec.block_size, spec.head_dim))
    return rows, cache[..., numbers : numbers + spec.block_size]


def all_kinds_of_rows(dtype: torch.dtype, dim: int) -> Tensor:
    """Return rows [N, dim]: of any bits, of one magnitude, at the edges of scales and of rounding,
    with NaN and with infinities."""
    bits = torch.randint(-(2**31), 2**31, (512, dim)).to(torch.int32).view(torch.float32)
    small = torch.arange(2**16, dtype=torch.int32).to(torch.int16)
    every = [small.view(kind).float() for kind in (torch.bfloat16, torch.float16)]
    usual = torch.randn(256, dim) * torch.logspace(-42, 38, 256)[:, None]
    edges = torch.tensor([448.0, 464.0, 480.0, 2.0**-6, 2.0**-9, 2.0**-10, 1.5 * 2.0**-10])
    steps = edges[:, None] * 2.0 ** torch.arange(-110, 110)
    near = torch.stack([steps, steps.nextafter(torch.tensor(0.0)), steps.nextafter(2 * steps)], -1)
    rows = torch.zeros(near[..., 0].numel(), dim)
    rows[:, 1:4] = near.flatten(0, 1)
    rows[:, 4] = 448 * steps.flatten() / edges.repeat_interleave(220)
    ends = rows[:4].clone()
    ends[0, 0], ends[1, 0], ends[2, 0], ends[3, 0] = torch.inf, -torch.inf, torch.nan, -0.0
    found = [bits, *(numbers.view(-1, dim) for numbers in every), usual, rows, ends]
    return torch.cat(found).to(dtype)


def check_blocks(
    run: Launcher, blocks: Sequence[int], in_tiles: bool, queries: int | None = None
) -> None:
    """Write a sequence's blocks, attend from its last tokens, by default all of them, and compare
    with dense attention."""
    spec, dtype = run.layer, getattr(torch, run.layer.dtype)
    size, heads = spec.block_size, spec.num_kv_heads
    table = torch.tensor(blocks, dtype=torch.int32)
    tokens = size * len(table)
    key, value = torch.randn(2, tokens, heads, spec.head_dim).to(dtype)
    run.write(key, value, (table.long()[:, None] * size + torch.arange(size)).flatten())
    count = queries or tokens
    query = torch.randn(count, spec.num_heads, spec.head_dim).to(dtype)
    got = run.attend(query, tokens, table, in_tiles).float()
    rows = [key.float(), value.float()]
    if spec.kv_cache_dtype != "auto":
        rows = [float8.unpack(float8.pack(row)) for row in rows]
    keys, values = (row.repeat_interleave(spec.num_heads // heads, 1) for row in rows)
    scores = torch.einsum("qhd,khd->hqk", query.float(), keys) * spec.scale
    hidden = torch.ones(count, tokens).triu(1 + tokens - count).bool()
    weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    wanted = torch.einsum("hqk,khd->qhd", weights, values)
    bound = 2e-5 if spec.dtype == "float32" else 2e-2
    torch.testing.assert_close(got, wanted, rtol=bound, atol=bound)


class KernelCases:
    """Cases of single kernels, wherever they run."""

    target: ClassVar[Target]
    device: ClassVar[str]

    def launcher(self, spec: LayerSpec, num_blocks: int) -> Launcher:
        dtype = getattr(torch, spec.dtype) if spec.kv_cache_dtype == "auto" else torch.uint8
        shape = head_major_shape(spec, num_blocks)
        return Launcher(self.target, spec, torch.empty(shape, dtype=dtype, device=self.device))

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_float8_is_written_as_pack_does(self, dtype: str) -> None:
        spec = layer(dtype, "fp8_e4m3")
        rows = all_kinds_of_rows(getattr(torch, dtype), spec.head_dim)
        blocks = -(-len(rows) // spec.block_size)
        run = self.launcher(spec, blocks)
        values = rows.flip(0)
        run.write(rows[:, None], values[:, None], torch.arange(len(rows)))
        numbers, scales = float8_rows(spec, run.cache.cpu())
        for which, written in enumerate((rows, values)):
            wanted = float8.pack(written)
            got = numbers[:, which, 0].flatten(0, 1)[: len(rows)]
            assert torch.equal(scales[:, which, 0].flatten()[: len(rows)], wanted[:, -1])
            has_nan = written.isnan().any(-1)
            assert torch.equal(got[~has_nan], wanted[~has_nan, :-1])
            # the rest of these is not scaled, and conversions of what is too great differ
            assert (got[~written.isfinite()] == 0x7F).all()

    @pytest.mark.parametrize("mode", MODES)
    def test_float8_is_read_as_unpack_does(self, mode: str) -> None:
        """A token that sees itself alone gets its value: all bytes, with several scales."""
        dtype, kernel = mode.split()
        spec = layer(dtype, "fp8_e4m3", head_dim=256, block_size=5, num_heads=1)
        run = self.launcher(spec, 1)
        run.cache.zero_()
        numbers, scales = float8_rows(spec, run.cache)
        numbers[0, 1, 0] = torch.arange(256, dtype=torch.uint8)
        scales[0, 0, 0] = 127
        # what float16 can hold
        scales[0, 1, 0] = torch.tensor([116, 121, 127, 130, 133], dtype=torch.uint8)
        table = torch.zeros(1, dtype=torch.int32)
        query = torch.zeros(1, 1, 256, dtype=getattr(torch, dtype))
        packed = torch.cat([numbers[0, 1, 0], scales[0, 1, 0, :, None]], -1)
        wanted = float8.unpack(packed.cpu())
        got = run.attend(query, 1, table, kernel == "tiles")[0, 0]
        torch.testing.assert_close(got.float(), wanted[0], rtol=0, atol=0, equal_nan=True)
        for length in range(2, 6):  # equal weights
            got = run.attend(query, length, table, kernel == "tiles")[0, 0]
            mean = wanted[:length].mean(0)
            torch.testing.assert_close(got.float(), mean, rtol=2e-2, atol=1e-5, equal_nan=True)

    @pytest.mark.parametrize("cache", ["auto", "fp8_e4m3"])
    def test_a_negative_slot_is_not_written(self, cache: KVCacheDtype) -> None:
        run = self.launcher(layer("bfloat16", cache), 2)
        run.cache.zero_()
        rows = torch.ones(3, 1, 64, dtype=torch.bfloat16)
        run.write(rows, rows, torch.tensor([-1, 17, -16]))
        found = run.cache.view(torch.uint8).flatten(1).any(1)
        assert found.tolist() == [False, True]
        assert run.cache.view(torch.uint8).count_nonzero() in (2 * 64 * 2, 2 * 65)

    @pytest.mark.parametrize("mode", MODES)
    def test_where_no_key_is_seen_there_are_zeros(self, mode: str) -> None:
        dtype, kernel = mode.split()
        run = self.launcher(layer(dtype), 1)
        run.cache.fill_(torch.nan)
        query = torch.ones(1, 2, 64, dtype=getattr(torch, dtype))
        out = run.attend(query, 0, torch.zeros(1, dtype=torch.int32), kernel == "tiles")
        assert torch.equal(out, torch.zeros_like(out))

    @pytest.mark.parametrize("cache", ["auto", "fp8_e4m3"])
    @pytest.mark.parametrize("kernel", ["decode", "tiles"])
    def test_places_beyond_two_billion_numbers(self, cache: KVCacheDtype, kernel: str) -> None:
        spec = layer("bfloat16", cache)
        per_block = 2 * spec.block_size * spec.head_dim
        run = self.launcher(spec, 2**31 // per_block + 2)  # of which little is touched
        last = len(run.cache) - 1
        assert run.cache.stride(0) * last >= 2**31
        check_blocks(run, [last], kernel == "tiles")

    @pytest.mark.parametrize("kernel", ["decode", "tiles"])
    def test_results_beyond_two_billion_numbers(self, kernel: str) -> None:
        """Numbers of one head in each row are touched."""
        heads, is_tiles = 4096, kernel == "tiles"
        spec = layer("bfloat16", num_heads=heads, num_kv_heads=heads)
        run = self.launcher(spec, 2)
        run.cache.copy_(torch.randn(run.cache.shape))
        query = torch.randn(1, heads, spec.head_dim).to(torch.bfloat16)
        table = torch.tensor([1, 0], dtype=torch.int32)
        before = 2**31 // (heads * spec.head_dim) + 1
        found = run.attend(query, 20, table, is_tiles, before)
        wanted = run.attend(query, 20, table, is_tiles)
        assert torch.equal(found[:, 0], wanted[:, 0])

    @pairwise(mode=MODES, scale=[-0.125, 0.0])
    def test_scales_that_are_not_positive(self, mode: str, scale: float) -> None:
        dtype, kernel = mode.split()
        spec = layer(dtype, scale=scale)
        check_blocks(self.launcher(spec, 2), [1], kernel == "tiles")

    @pairwise(mode=MODES, cache=["auto", "fp8_e4m3"], group=[16, 17, 71])
    def test_large_groups(self, mode: str, cache: KVCacheDtype, group: int) -> None:
        dtype, kernel = mode.split()
        spec = layer(dtype, cache, num_heads=2 * group, num_kv_heads=2)
        check_blocks(self.launcher(spec, 2), [1], kernel == "tiles")

    @pairwise(dtype=DTYPES, cache=["auto", "fp8_e4m3"], dim=[40, 96, 128, 256])
    def test_many_keys_in_one_part(self, dtype: str, cache: KVCacheDtype, dim: int) -> None:
        """So many that shared memory is filled again and again; blocks are no multiples of what a
        warp takes at once."""
        spec = layer(dtype, cache, num_heads=9, head_dim=dim, block_size=5, scale=dim**-0.5)
        blocks = torch.randperm(120)[:111].tolist()
        check_blocks(self.launcher(spec, 120), blocks, in_tiles=False, queries=3)

    @pytest.mark.parametrize("numbers", [(64, 400), (12, 1000)], ids=["by 16", "by 8"])
    def test_blocks_are_copied_in_all_caches(self, numbers: tuple[int, int]) -> None:
        """Caches with blocks of different sizes; what is copied is read before it is written."""
        run = self.launcher(layer("bfloat16"), 1)
        module = self.target.module(run.variant, run.cache.device)
        caches = [
            torch.randint(0, 2**15, (9, count), dtype=torch.int16, device=self.device)
            for count in numbers
        ]
        for origins, destinations in (([0, 3, 0], [7, 8, 2]), ([3, 4, 5], [4, 5, 6])):
            wanted = [cache.clone() for cache in caches]
            for cache in wanted:
                cache[destinations] = cache[origins].clone()
            BlockCopier(module, run.cache.device).copy(caches, origins, destinations)
            assert all(map(torch.equal, caches, wanted))

    def test_blocks_that_cannot_be_copied_are_refused(self) -> None:
        run = self.launcher(layer("bfloat16"), 9)
        module = self.target.module(run.variant, run.cache.device)
        copier = BlockCopier(module, run.cache.device)
        for origins, destinations in (([9], [0]), ([0], [9])):
            with pytest.raises(ValueError, match=r"blocks \[9\] are copied, and the cache has 9"):
                copier.copy([run.cache], origins, destinations)
        with pytest.raises(ValueError, match="must be contiguous"):
            copier.copy([run.cache.transpose(1, 3)], [0], [0])


@pytest.mark.heavy
@pytest.mark.skipif(unavailable_reason() is not None, reason="there is no C++ compiler here")
class TestCudaKernels(KernelCases):
    target = EmulatedTarget(checked=False)
    device = "cpu"


@pytest.mark.heavy
@pytest.mark.skipif(unavailable_reason() is not None, reason="there is no C++ compiler here")
def test_copies_of_blocks_use_no_other_memory() -> None:
    module = EmulatedTarget(checked=True).emulation
    cache = torch.randint(0, 200, (9, 24), dtype=torch.uint8)
    wanted = cache.clone()
    wanted[4:7] = cache[3:6].clone()
    BlockCopier(module, torch.device("cpu")).copy([cache], [3, 4, 5], [4, 5, 6])
    assert torch.equal(cache, wanted)
