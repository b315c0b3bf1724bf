"""Backends and batches for tests of how attention components call packages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import wraps
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from paged_core.engine.contexts import AttentionContext
from paged_core.interfaces.attention import AttentionBackend, AttentionBatch
from paged_core.interfaces.layer import LayerSpec
from paged_core.plugins.registry import Registry
from paged_core.settings.schema import EngineSettings
from paged_testing.attention_scene import attention_batch

LAYER = LayerSpec(
    num_heads=4,
    num_kv_heads=2,
    head_dim=64,
    scale=0.125,
    dtype="bfloat16",
    device="cpu",
    block_size=16,
)


def layer(**changes: Any) -> LayerSpec:
    """Return a small layer with ``changes``."""
    return replace(LAYER, **changes)


def make(table: dict[str, Any], **settings: Any) -> AttentionBackend:
    """Return the component that a table of settings names, made as an engine makes it."""
    registry = Registry.discover()
    component = registry.get("attention", table["name"])
    made: AttentionBackend = component.load()(
        component.settings.model_validate(table),
        AttentionContext(settings=EngineSettings(**settings), registry=registry),
    )
    return made


def batch_of(chunks: Sequence[tuple[int, int]], block_size: int = 16) -> AttentionBatch:
    """Return sequences with so many cached and new tokens, in blocks of their own."""
    width = max(-(-sum(chunk) // block_size) for chunk in chunks)
    tables = np.arange(width * len(chunks)).reshape(len(chunks), width)
    return attention_batch(tables, chunks, block_size)


def run(backend: AttentionBackend, layer: LayerSpec, batch: AttentionBatch) -> torch.Tensor:
    """Attend over a cache of random numbers."""
    cache = torch.randn(backend.cache_shape(layer, int(batch.block_tables_host.max()) + 1)).to(
        getattr(torch, layer.dtype)
    )
    parts = tokens(layer, len(batch.slot_mapping))
    return backend.bind(layer, cache).forward(*parts, backend.plan(batch))


def tokens(layer: LayerSpec, count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return random queries, keys and values."""
    dtype = getattr(torch, layer.dtype)
    query, key, value = (
        torch.randn(count, heads, layer.head_dim).to(dtype)
        for heads in (layer.num_heads, layer.num_kv_heads, layer.num_kv_heads)
    )
    return query, key, value


def record(patch: pytest.MonkeyPatch, module: ModuleType, name: str) -> list[dict[str, Any]]:
    """Return a list to which every call of a stand-in's function adds its keywords."""
    calls: list[dict[str, Any]] = []
    function = getattr(module, name)

    @wraps(function)
    def called(*args: Any, **options: Any) -> Any:
        calls.append(options)
        return function(*args, **options)

    patch.setattr(module, name, called)
    return calls
