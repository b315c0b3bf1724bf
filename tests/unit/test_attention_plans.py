"""Attention takes what it plans by from the host: it never reads a tensor of the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from paged_backends.attention import torch_attention
from paged_backends.attention.cpu_attention import CpuAttention
from paged_backends.attention.torch_attention import TorchAttention
from paged_core.interfaces.attention import AttentionBackend, AttentionBatch
from paged_core.plugins.registry import Registry
from paged_testing.attention_scene import Scene, attention_batch
from unit import attention_calls as calls
from unit.attention_calls import layer

CHUNKS = [(40, 1), (0, 9), (13, 1), (5, 6), (40, 1)]
LAYER = layer(head_dim=8, dtype="float32", block_size=4, sliding_window=20)
READS = {
    *("item", "tolist", "numpy", "cpu", "nonzero", "equal", "unique", "masked_select"),
    *("__bool__", "__int__", "__float__", "__index__", "__array__", "__contains__"),
}
"""Functions that wait for the device: their result is on the host, or its shape is."""


class NoReads(TorchFunctionMode):
    """Raises where a tensor is read."""

    def __init__(self, *allowed: str) -> None:
        super().__init__()
        self.forbidden = READS.difference(allowed)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        assert name not in self.forbidden, f"{name}() waits for the device"
        return func(*args, **(kwargs or {}))


def make(name: str) -> AttentionBackend:
    if reason := Registry.discover().get("attention", name).unavailable_reason():
        pytest.skip(reason)
    backend: AttentionBackend = calls.make(name)
    assert backend.check(LAYER) is None
    return backend


def batch(device: str) -> AttentionBatch:
    return attention_batch(np.arange(11 * len(CHUNKS)).reshape(-1, 11), CHUNKS, 4, device)


def run(backend: AttentionBackend, device: str) -> Tensor:
    """Plan a step and attend in one layer."""
    cache = torch.zeros(backend.cache_shape(LAYER, 60), device=device)
    bound = backend.bind(LAYER, cache)
    made, count = batch(device), sum(new for _, new in CHUNKS)
    query, key, value = (torch.zeros(count, heads, 8, device=device) for heads in (4, 2, 2))
    # the kernels of `cpu` get the addresses of its tensors, which are in the memory of the host
    with NoReads(*(["numpy"] if isinstance(backend, CpuAttention) else [])):
        return bound.forward(query, key, value, backend.plan(made))


def names() -> list[str]:
    return [record.name for record in Registry.discover().candidates("attention")]


@pytest.mark.parametrize("name", names())
def test_a_step_reads_no_tensor(name: str) -> None:
    run(make(name), "cpu")


def test_torch_computes_a_step_of_which_only_the_host_arrays_have_values() -> None:
    backend = make("torch")
    assert isinstance(backend, TorchAttention)
    assert run(backend, "meta").shape == (sum(new for _, new in CHUNKS), 4, 8)


@pytest.mark.parametrize("window", [None, 5])
def test_equals_dense_attention_when_a_chunk_takes_several_tiles(
    window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, bound in (("_MAX_SCORES", 24), ("_MAX_KEYS", 16), ("_SLACK", 0)):
        monkeypatch.setattr(torch_attention, name, bound)
    chunks = [(5, 9), (9, 1), (0, 11), (3, 1), (30, 1), (0, 2), (0, 1)]
    of = layer(head_dim=8, dtype="float32", block_size=4, sliding_window=window)
    calls.check(Scene(make("torch"), of, chunks, 1))
