"""Attention never reads or writes outside of its cache: each plan is checked against its blocks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from paged_backends.attention.cache import layout_of
from paged_core.interfaces.attention import AttentionBackend, AttentionBatch
from paged_testing.attention_scene import attention_batch
from unit.test_attention_plans import LAYER, make

NUM_BLOCKS = 6
backends = pytest.mark.parametrize("name", ["cpu", "torch"])


def batch(block: int) -> AttentionBatch:
    """Two sequences; the second writes its last token to ``block``."""
    tables = np.array([[0, 1, 2], [3, 4, block]], np.int32)
    return attention_batch(tables, [(8, 1), (5, 5)], LAYER.block_size)


def attend(backend: AttentionBackend, made: AttentionBatch) -> Any:
    """Attend in the first blocks of a cache that has more behind it; return what is behind."""
    dim, whole = backend.block_dim(), torch.zeros(backend.cache_shape(LAYER, NUM_BLOCKS + 4))
    assert dim in (0, 1)
    cache = whole.narrow(dim, 0, NUM_BLOCKS)
    bound = backend.bind(LAYER, cache if cache.is_contiguous() else cache.contiguous())
    count = len(made.slot_mapping)
    query, key, value = (torch.ones(count, heads, 8) for heads in (4, 2, 2))
    try:
        bound.forward(query, key, value, backend.plan(made))
    finally:
        assert not whole.narrow(dim, NUM_BLOCKS, 4).any()


@backends
def test_blocks_of_the_cache_are_served(name: str) -> None:
    attend(make(name), batch(NUM_BLOCKS - 1))


@backends
@pytest.mark.parametrize("block", [-1, -(1 << 20), NUM_BLOCKS, 1 << 20, (1 << 31) - 1])
def test_a_block_outside_of_the_cache_is_refused(name: str, block: int) -> None:
    with pytest.raises(ValueError, match=f"names block {block}, and the cache has 6"):
        attend(make(name), batch(block))


@backends
@pytest.mark.parametrize("slot", [-1, NUM_BLOCKS * 4, 1 << 40])
def test_a_slot_outside_of_the_cache_is_refused(name: str, slot: int) -> None:
    made = batch(5)
    slots = made.slot_mapping.clone()
    slots[2] = slot
    with pytest.raises((ValueError, IndexError, RuntimeError), match=r"slot|out of"):
        attend(make(name), replace(made, slot_mapping=slots))


@backends
def test_a_sequence_longer_than_its_block_table_is_refused(name: str) -> None:
    made = batch(5)
    lengths = np.array([9, 13], np.int32)
    wrong = replace(made, seq_lens=torch.from_numpy(lengths), seq_lens_host=lengths)
    with pytest.raises(ValueError, match="13 tokens, and its block table has 3 blocks of 4"):
        attend(make(name), wrong)


@backends
@pytest.mark.parametrize("wrong", [-1, NUM_BLOCKS])
def test_no_block_outside_of_the_cache_is_copied(name: str, wrong: int) -> None:
    layout = layout_of(make(name))
    cache = layout.allocate_cache(LAYER, NUM_BLOCKS, "cpu")
    for sources, targets in (([wrong], [0]), ([0], [wrong])):
        with pytest.raises((IndexError, RuntimeError), match="out of"):
            layout.copy_blocks(cache, sources, cache, targets)
