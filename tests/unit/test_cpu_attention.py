"""Bits of attention ``cpu``, beyond the contract of every backend."""

from __future__ import annotations

import pytest
import torch

from paged_backends.attention.cpu_attention import CpuAttention
from paged_core.interfaces.layer import LayerSpec
from paged_testing.attention_scene import Scene
from unit import attention_calls as calls
from unit.cpu_kernels import SETS, load

pytestmark = pytest.mark.heavy


def layer(dtype: str, **changes: object) -> LayerSpec:
    return calls.layer(**{"num_heads": 6, "dtype": dtype, **changes})


def backend(name: str, *, deterministic: bool = False) -> CpuAttention:
    load(name)  # skips the test where it cannot be had
    made: CpuAttention = calls.make(
        {"name": "cpu", "instruction_set": name}, deterministic=deterministic
    )
    return made


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
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


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_bits_do_not_depend_on_the_number_of_threads(name: str, dtype: str) -> None:
    chunks = [(700, 1), (0, 150), (40, 1), (1300, 1), (7, 9)]
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            scene = Scene(backend(name), layer(dtype), chunks, 2)
            found.append(torch.cat(scene.run(list(range(len(chunks))))))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


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
