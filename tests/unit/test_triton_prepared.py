"""Attention of ``triton`` that prepares heads as it writes keys: what is written is what is written
after heads were prepared by a kernel of their own, to the byte."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from paged_backends.kernels.triton.availability import is_interpreted
from paged_core.interfaces.attention import HeadPreparation, SupportsHeadPreparation
from paged_core.interfaces.layer import LayerSpec
from paged_testing.attention_scene import attention_batch
from unit.triton_kernels import LAYER, LaunchedFor

if not is_interpreted():
    pytest.skip("there is a GPU, and Triton interprets nothing", allow_module_level=True)

from paged_backends.kernels.triton.layer_ops import prepare_heads, rotary_angles

pytestmark = pytest.mark.heavy


KINDS: dict[str, tuple[dict[str, Any], tuple[bool, bool], bool]] = {
    "as in Qwen3": ({"dtype": "bfloat16"}, (True, True), True),
    "float32, a width between powers of two": ({"head_dim": 40}, (True, True), True),
    "float8, another width": (
        {"dtype": "float16", "kv_cache_dtype": "fp8_e4m3", "head_dim": 24, "block_size": 5},
        (False, True),
        True,
    ),
    "norms alone": ({"num_heads": 6, "num_kv_heads": 1}, (True, False), False),
}
"""Changes of the layer; which heads have norms; whether there is a rotary embedding."""
CHUNKS = [(20, 1), (3, 1), (0, 7)]


def cache_of(layer: LayerSpec) -> Tensor:
    """Return a cache that holds numbers everywhere."""
    shape = LaunchedFor(None).cache_shape(layer, 20)
    if layer.kv_cache_dtype != "auto":
        return torch.randint(100, 125, shape, dtype=torch.uint8)
    return torch.randn(shape).to(getattr(torch, layer.dtype))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("captured", [True, False])
def test_the_same_is_written_and_attended(kind: str, captured: bool) -> None:
    changes, norms, rotates = KINDS[kind]
    layer = replace(LAYER, **changes)
    backend = LaunchedFor(None)
    dtype, width = getattr(torch, layer.dtype), layer.head_dim
    chunks = CHUNKS[:2] if captured else CHUNKS
    tables = np.arange(1, 16, dtype=np.int32).reshape(3, 5)[: len(chunks)]
    batch = attention_batch(tables, chunks, layer.block_size)
    count = len(batch.slot_mapping)
    if captured:
        batch.slot_mapping[1] = -1  # a row to spare
        batch.seq_lens[1] = 0
    # behind the last slot there is one that may not be read
    slots = torch.cat([batch.slot_mapping, torch.tensor([18 * layer.block_size])])[:-1]
    batch = replace(batch, slot_mapping=slots)
    plan = backend.plan_capture(batch) if captured else backend.plan(batch)
    counts = (layer.num_heads, layer.num_kv_heads, layer.num_kv_heads)
    fused = (3 * torch.randn(count, sum(counts), width)).to(dtype)
    weights = [torch.randn(width).to(dtype) if has else None for has in norms]
    angles = rotary_angles(torch.rand(width // 2), torch.arange(count) * 7) if rotates else None

    plain, cache = (part.clone() for part in (fused, cache_of(layer)))
    query, key, value = plain.split_with_sizes(counts, 1)
    prepare_heads(
        query, key, angles, query_norm_D=weights[0], key_norm_D=weights[1], eps=1e-6, offset=1.0
    )
    expected_cache = cache.clone()
    expected = backend.bind(layer, expected_cache[1:]).forward(query, key, value, plan)

    bound = backend.bind(layer, cache[1:])  # before it there is memory of its own, to be compared
    assert isinstance(bound, SupportsHeadPreparation)
    preparation = HeadPreparation(
        query_norm=weights[0],
        key_norm=weights[1],
        eps=1e-6,
        offset=1.0,
        cos=None if angles is None else angles[0],
        sin=None if angles is None else angles[1],
    )
    rows = fused.split_with_sizes(counts, 1)
    found = bound.prepare_and_forward(*rows, plan, preparation)
    assert torch.equal(cache.view(torch.uint8), expected_cache.view(torch.uint8))
    seen = slice(1) if captured else slice(None)
    assert torch.equal(found[seen], expected[seen])
    assert torch.equal(rows[2], value)
