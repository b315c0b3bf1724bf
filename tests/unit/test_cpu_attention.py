"""Bits of attention ``cpu`` and its cache in int8, beyond the contract of every backend."""

from __future__ import annotations

from dataclasses import replace
from math import nan

import numpy as np
import pytest
import torch
from torch import Tensor

from paged_backends.attention.cache import layout_of
from paged_backends.attention.cpu_attention import CpuAttention
from paged_core.interfaces.layer import LayerSpec
from paged_testing.attention_scene import Scene, attention_batch
from unit import attention_calls as calls
from unit.cpu_kernels import SETS, load

pytestmark = pytest.mark.heavy
each_set = pytest.mark.parametrize("name", SETS)
each_dtype = pytest.mark.parametrize("dtype", ["float32", "bfloat16"])


def layer(dtype: str, **changes: object) -> LayerSpec:
    return calls.layer(**{"num_heads": 6, "dtype": dtype, **changes})


def backend(name: str, *, deterministic: bool = False) -> CpuAttention:
    load(name)  # skips the test where it cannot be had
    made: CpuAttention = calls.make(
        {"name": "cpu", "instruction_set": name}, deterministic=deterministic
    )
    return made


@each_set
@each_dtype
@pytest.mark.parametrize("window", [None, 50])
def test_deterministic_bits_do_not_depend_on_how_a_prompt_is_cut(
    name: str, dtype: str, window: int | None
) -> None:
    made, spec = backend(name, deterministic=True), layer(dtype, sliding_window=window)
    whole = Scene(made, spec, [(0, 300)], 1)
    (expected,) = whole.run([0])
    for cuts in ([299, 1], [1, 128, 171], [100, 27, 2, 1, 1, 169]):
        scene = Scene(made, spec, [(0, 300)], 1)
        queries, begin, parts = whole.queries[0], 0, []
        for count in cuts:
            scene.chunks = [(begin, count)]
            scene.queries = [queries[begin : begin + count]]
            parts += scene.run([0], write_cached=False)
            begin += count
        assert torch.equal(torch.cat(parts), expected), cuts


@each_set
@each_dtype
def test_bits_do_not_depend_on_the_number_of_threads(name: str, dtype: str) -> None:
    chunks = [(700, 1), (0, 150), (40, 1), (1300, 1), (7, 9)]
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            scene = Scene(backend(name), layer(dtype), chunks, 2)
            found.append(torch.cat(scene.run(list(range(len(chunks))))))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*found)


def test_a_cache_in_pieces_is_refused() -> None:
    made, spec = backend("portable"), layer("float32")
    cache = torch.zeros(made.cache_shape(spec, 8))
    with pytest.raises(ValueError, match="contiguous"):
        made.bind(spec, cache[::2])


def test_queries_of_another_type_than_the_cache_come_back_in_their_own() -> None:
    made, spec = backend("auto"), layer("bfloat16")
    scene = Scene(made, spec, [(20, 1), (0, 5)], 3)
    expected = scene.run([0, 1])
    scene.queries = [query.float() for query in scene.queries]
    for out, wanted in zip(scene.run([0, 1]), expected, strict=True):
        assert out.dtype == torch.float32
        assert torch.equal(out, wanted.float())


# ---------------------------------------------------------------------- a cache in int8


def stored(name: str, rows: Tensor) -> Tensor:
    """Write rows [N, D] as keys of one sequence, and return what the cache says, in float64."""
    made, count, dim = backend(name), len(rows), rows.shape[1]
    dtype = str(rows.dtype).removeprefix("torch.")
    spec = layer(dtype, num_heads=1, num_kv_heads=1, head_dim=dim, kv_cache_dtype="int8")
    blocks = -(-count // spec.block_size)
    held = layout_of(made).allocate_cache(spec, blocks, "cpu")
    plan = made.plan(attention_batch(np.arange(blocks)[None], [(0, count)], spec.block_size, "cpu"))
    keys = rows[:, None]
    made.bind(spec, held).forward(keys, keys, keys, plan)
    stored_bytes = held[:, 0].flatten(0, 2)[:count]
    codes = stored_bytes[:, :dim].view(torch.int8).double()
    return codes * stored_bytes[:, dim:].contiguous().view(torch.bfloat16).double()


@each_set
@each_dtype
@pytest.mark.parametrize("dim", [5, 64, 80])
def test_a_number_is_rounded_by_a_252nd_of_the_greatest_of_its_row(
    name: str, dtype: str, dim: int
) -> None:
    torch.manual_seed(dim)
    powers = torch.cat([torch.randint(-110, 120, (19,)), torch.tensor([-120, -126, 126])])
    rows = torch.randn(len(powers), dim).clamp(-3, 3) * torch.exp2(powers.float())[:, None]
    rows = rows.to(getattr(torch, dtype))
    rows[3] = 0
    error = (stored(name, rows) - rows.double()).abs()
    bound = rows.double().abs().amax(-1, keepdim=True) / 252
    assert (error <= bound.clamp(min=2.0**-126)).all()
    assert error.max() > 0


@each_set
@pytest.mark.parametrize("bad", [0x7FC00000, 0x7FFFFFFF, -1, 0x7F800000, -0x800000], ids=hex)
def test_a_row_that_is_not_finite_is_nan_and_spoils_no_other(name: str, bad: int) -> None:
    """``bad``: the bits of a number."""
    rows = torch.tensor([[1.0, 0.0, 2.0], [127.0, -4.0, 5.0], [0.0, 0.0, 0.0]])
    rows.view(torch.int32)[0, 1] = bad
    found = stored(name, rows)
    assert found[0].isnan().all()
    assert found[1:].tolist() == rows[1:].tolist()


@each_set
@each_dtype
@pytest.mark.parametrize("heads", [(4, 2), (5, 1)], ids=str)
def test_attention_over_it_is_within_a_hundredth_of_exact_attention(
    name: str, dtype: str, heads: tuple[int, int]
) -> None:
    """Random keys and values, which 8 bits do not hold exactly; one query, several, and tiles."""
    spec = layer(dtype, num_heads=heads[0], num_kv_heads=heads[1], kv_cache_dtype="int8")
    chunks = [(200, 1), (50, 7), (0, 13), (70, 1)]
    exact = Scene(backend(name), replace(spec, kv_cache_dtype="auto"), chunks, 4)
    scene = Scene(backend(name), spec, chunks, 4)
    scene.keys, scene.values = exact.keys, exact.values
    for index, out in enumerate(scene.run([0, 1, 2, 3])):
        wanted = torch.from_numpy(scene.expected(index))
        assert 0 < (out.double() - wanted).norm() / wanted.norm() < 0.012


@each_set
def test_a_query_that_is_not_finite_spoils_no_other(name: str) -> None:
    scene = Scene(backend(name), layer("bfloat16", kv_cache_dtype="int8"), [(40, 1), (9, 1)], 5)
    (expected,) = scene.run([1])
    scene.queries[0][0, 1, 7] = nan
    spoilt, other = scene.run([0, 1])
    assert spoilt[0, 1].isnan().all()
    assert not spoilt[0, 0].isnan().any()
    assert torch.equal(other, expected)
