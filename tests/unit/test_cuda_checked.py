"""Every access of the CUDA kernels to memory is looked at, in scenes that between them do it all.

What is found here need not show in results: reads beyond a buffer, races, shared memory that was
not written, copies that were not waited for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import product
from math import prod
from typing import Any

import pytest
import torch

from paged_backends.attention.cuda_attention import CudaAttention
from paged_backends.kernels.build import CannotCompile
from paged_backends.kernels.cpu.compiler import find_compiler
from paged_backends.kernels.cuda.emulation import Order
from paged_backends.kernels.cuda.kernel import KernelError
from paged_backends.kernels.cuda.targets import EmulatedTarget
from paged_testing.attention_scene import Scene
from unit.attention_calls import LAYER, check, make
from unit.test_cuda_attention import step

CHUNKS = [(37, 1), (0, 45), (130, 3), (270, 1), (0, 1)]
LAYERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "grouped": {"num_heads": 6, "head_dim": 128, "block_size": 5},
    "window": {"num_heads": 10, "sliding_window": 20, "soft_cap": 3.0},
    "odd": {"head_dim": 80, "block_size": 1, "alibi_slopes": (0.5, 0.1, 0.01, 0.0)},
    "float8": {"kv_cache_dtype": "fp8_e4m3", "block_size": 3, "num_heads": 2},
}
ORDERS: list[Order] = ["up", "down", "by chance"]


@cache
def backend(*, deterministic: bool, prefill_tile: str = "mma") -> CudaAttention:
    compiler = find_compiler()
    if isinstance(compiler, CannotCompile):
        pytest.skip(str(compiler))
    made: CudaAttention = make(
        {"name": "cuda", "target": "emulated_checked", "prefill_tile": prefill_tile},
        deterministic=deterministic,
    )
    return made


def set_order(made: CudaAttention, order: Order) -> None:
    assert isinstance(made.target, EmulatedTarget)
    made.target.emulation.set_order(order, seed=3)


def cases() -> Iterator[Any]:
    """All, of which those are not slow that have each layer in one order, and one in tiles."""
    for place, name in enumerate(LAYERS):
        for case in product(("float32", "bfloat16"), (False, True), ORDERS):
            is_brief = case[1:] == (False, ORDERS[place % 3])
            is_brief |= (name, *case) == ("plain", "bfloat16", True, "by chance")
            yield pytest.param(name, *case, marks=() if is_brief else pytest.mark.slow)


@pytest.mark.parametrize(("name", "dtype", "deterministic", "order"), cases())
def test_nothing_is_wrong(name: str, dtype: str, deterministic: bool, order: Order) -> None:
    layer, made = replace(LAYER, dtype=dtype, **LAYERS[name]), backend(deterministic=deterministic)
    set_order(made, order)
    assert made.check(layer) is None
    check(Scene(made, layer, CHUNKS, 1))


WARPGROUP_LAYERS = {
    "plain": LAYERS["plain"],
    "grouped": LAYERS["grouped"],
    "window": LAYERS["window"],
    "odd": {**LAYERS["odd"], "head_dim": 104},
}


@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float16", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", WARPGROUP_LAYERS)
def test_nothing_is_wrong_with_warpgroups(name: str, dtype: str) -> None:
    layer = replace(LAYER, dtype=dtype, **WARPGROUP_LAYERS[name])
    made = backend(deterministic=True, prefill_tile="wgmma")
    set_order(made, ORDERS[len(name) % 3])
    assert made.check(layer) is None
    check(Scene(made, layer, CHUNKS, 1))


def test_float16_is_left_out() -> None:
    reason = backend(deterministic=False).check(replace(LAYER, dtype="float16"))
    assert "no kernel paged_write_float16_auto in the emulation" in str(reason)


def test_an_access_outside_of_the_tensors_is_named() -> None:
    """A slot is not looked at before the kernels get it: a GPU would have to be waited for.

    No other tensor lies behind the cache: the nearest one is named.
    """
    made = backend(deterministic=False)
    cache_ = torch.zeros(made.cache_shape(LAYER, 60), dtype=torch.bfloat16)
    cache_ = cache_.flatten()[: prod(shape := made.cache_shape(LAYER, 6))].view(shape)
    batch, tensors = step(LAYER, [(4, 1)])
    batch.slot_mapping.fill_(6 * LAYER.block_size)
    with pytest.raises(
        KernelError, match=r"kernel paged_write_bfloat16_auto: .* beyond the end of cache"
    ):
        made.bind(LAYER, cache_).forward(*tensors, made.plan(batch))


def test_scratch_memory_that_was_not_written_is_found() -> None:
    """A combination of more splits than were computed."""
    made = backend(deterministic=False)
    set_order(made, "up")
    cache_ = torch.zeros(made.cache_shape(LAYER, 60), dtype=torch.bfloat16)
    batch, tensors = step(LAYER, [(900, 1)])
    bound, plan = made.bind(LAYER, cache_), made.plan(batch)
    launches = bound._take(plan)  # type: ignore[attr-defined]
    _, (decode, (rows, blocks, splits)), _ = launches.kernels
    assert splits > 1
    fewer = tuple(
        (kernel, (rows, blocks, splits - 1)) if kernel is decode else (kernel, grid)
        for kernel, grid in launches.kernels
    )
    bound._launches = replace(launches, kernels=fewer)  # type: ignore[attr-defined]
    assert bound.forward(*tensors, plan).isnan().any()
