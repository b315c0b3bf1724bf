"""Blocks that are swapped and copied, on an emulated device in each order of its work."""

from __future__ import annotations

import pytest
import torch

from emulation.accelerator import PACES, EmulatedAccelerator
from paged_backends.executors import paged_cache
from paged_backends.executors.paged_cache import CacheGroup, PagedCache
from unit.attention_calls import layer
from unit.capturable_attention import CapturableAttention

OUT, HOST, BACK = [4, 5, 6, 9, 1, 12, 2], [3, 4, 6, 7, 8, 0, 14], [0, 1, 2, 3, 15, 5, 4]


@pytest.mark.parametrize("pace", PACES)
@pytest.mark.parametrize("piece", [1, 3, 64])
def test_blocks_come_back_as_they_went(
    piece: int, pace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paged_cache, "_MAX_BLOCKS", piece)
    accelerator = EmulatedAccelerator(pace=pace)
    counts = {"num_blocks": 16, "num_host_blocks": 16}
    cache = PagedCache([layer()] * 2, CapturableAttention(), accelerator, **counts)
    (group,) = cache._parts
    assert isinstance(group, CacheGroup)
    blocks, compute = group._blocks, accelerator.compute
    blocks.copy_(torch.randn(blocks.shape))
    wanted, seen = blocks.clone(), list[torch.Tensor]()
    cache.swap_out(OUT, HOST)
    compute.launch(lambda: blocks.fill_(0))  # they are free at once
    cache.swap_in(HOST, BACK)
    compute.launch(lambda: seen.append(blocks.clone()))
    cache.copy([0, 1, 2], [1, 2, 0])
    compute.record().wait()
    assert torch.equal(group._host[HOST], wanted[OUT])
    assert torch.equal(seen[0][BACK], wanted[OUT])
    assert torch.equal(blocks[[1, 2, 0]], wanted[OUT[:3]]), "all are read before any is written"
