"""The memory that the largest step takes, found by running it.

Shapes: T tokens of S sequences in the batch, W blocks in a row of the block tables.
"""

# ruff: noqa: N803, N806 - the shape of an array is the upper-case end of its name
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paged_backends.attention.cache import layout_of
from paged_backends.attention.step import StepAttention
from paged_backends.executors.accelerator import Accelerator, DeviceMemory
from paged_backends.sampling.device_sampling import DeviceParams, device_draw
from paged_core.errors import SettingsError
from paged_core.interfaces.attention import (
    AttentionBackend,
    AttentionBatch,
    LayerAttention,
)
from paged_core.interfaces.layer import LayerSpec
from paged_core.interfaces.runner import Runner


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryProfile:
    """What a device has before the cache is allocated, and what it needs beside it."""

    memory: DeviceMemory
    activations: int
    """Bytes that the largest step takes at its peak, beyond weights and cache."""


def profile_pass(
    accelerator: Accelerator,
    runner: Runner,
    backend: AttentionBackend,
    *,
    max_num_batched_tokens: int,
    max_num_seqs: int,
    max_model_len: int,
) -> MemoryProfile:
    """Run the largest step that a scheduler may plan, over a cache for its longest sequence.

    Raises:
        SettingsError: the device has not enough memory for it.
    """
    lengths_S = sequence_lengths(max_num_batched_tokens, max_num_seqs, max_model_len)
    try:
        activations = _peak(accelerator, runner, backend, lengths_S)
    except torch.OutOfMemoryError as error:
        raise SettingsError(
            f"a step of {lengths_S.sum()} tokens does not fit on {accelerator.device} beside the "
            f"weights: {str(error).partition(chr(10))[0]}; lower "
            "scheduler.max_num_batched_tokens or scheduler.max_num_seqs, or use a smaller model"
        ) from error
    return MemoryProfile(memory=accelerator.memory(), activations=activations)


def _peak(
    accelerator: Accelerator,
    runner: Runner,
    backend: AttentionBackend,
    lengths_S: NDArray[np.int64],
) -> int:
    """Return the bytes that a step takes; the cache that it needs is gone afterwards."""
    batch = _batch(accelerator, lengths_S, runner.layers[0].block_size)
    tokens_T = accelerator.upload(np.zeros(lengths_S.sum(), np.int64))
    positions_T = accelerator.upload(np.concatenate([np.arange(n) for n in lengths_S]))
    last_S = accelerator.upload(np.cumsum(lengths_S) - 1)
    layers = _layers(runner.layers, backend, num_blocks=batch.block_tables.shape[1])

    def work() -> None:
        attend = StepAttention(layers, backend.plan(batch))
        hidden = runner.forward(tokens_T, positions_T, attend)
        logits = runner.logits(hidden.index_select(0, last_S))
        device_draw(logits, _any_params(logits))

    return accelerator.peak(work)


def sequence_lengths(
    max_num_batched_tokens: int, max_num_seqs: int, max_model_len: int
) -> NDArray[np.int64]:
    """Return the tokens of as many sequences as may be [S], long ones first, all within the
    budget."""
    count = max(1, min(max_num_seqs, max_num_batched_tokens))
    rest = max(0, max_num_batched_tokens - count)
    room_S = np.full(count, max_model_len - 1)
    used_S = np.minimum(np.cumsum(room_S), rest)
    lengths_S: NDArray[np.int64] = 1 + np.diff(used_S, prepend=0)
    return lengths_S


def _batch(
    accelerator: Accelerator, lengths_S: NDArray[np.int64], block_size: int
) -> AttentionBatch:
    """Return a prefill of sequences that all write to the same blocks."""
    starts = np.append(0, np.cumsum(lengths_S)).astype(np.int32)
    width = -(-int(lengths_S.max()) // block_size)
    tables_SW = np.tile(np.arange(width, dtype=np.int32), (len(lengths_S), 1))
    lengths = lengths_S.astype(np.int32)
    return AttentionBatch(
        query_start=accelerator.upload(starts),
        seq_lens=accelerator.upload(lengths),
        block_tables=accelerator.upload(tables_SW),
        slot_mapping=accelerator.upload(np.concatenate([np.arange(n) for n in lengths_S])),
        query_start_host=starts,
        seq_lens_host=lengths,
        block_tables_host=tables_SW,
        max_query_len=int(lengths_S.max()),
        max_seq_len=int(lengths_S.max()),
    )


def _layers(
    layers: Sequence[LayerSpec], backend: AttentionBackend, *, num_blocks: int
) -> list[LayerAttention]:
    """Bind the layers to a small cache: one for all that are alike, to be overwritten."""
    layout = layout_of(backend)
    caches = {
        layer: layout.allocate_cache(layer, num_blocks, layer.device) for layer in set(layers)
    }
    return [backend.bind(layer, caches[layer]) for layer in layers]


def _any_params(logits: Tensor) -> DeviceParams:
    """Return parameters of which every filter is on."""
    count, device = len(logits), logits.device
    return DeviceParams(
        temperature=torch.full((count,), 1.0, device=device),
        min_p=torch.full((count,), 0.01, device=device),
        top_k=torch.full((count,), 50, dtype=torch.int32, device=device),
        top_p=torch.full((count,), 0.9, device=device),
        uniform=torch.full((count,), 0.5, dtype=torch.float64, device=device),
    )
