"""The size of the cache on the device and on the host, and the longest sequence.

On a device that can measure it, the memory that the largest step takes is found by running it.

Shapes: T tokens of S sequences in the batch, W blocks in a row of the block tables.
"""

# ruff: noqa: N803, N806 - the shape of an array is the upper-case end of its name
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paged_backends.attention.cache import layout_of
from paged_backends.attention.step import StepAttention
from paged_backends.device import free_memory
from paged_backends.executors.accelerator import Accelerator, DeviceMemory
from paged_backends.sampling.device_sampling import DeviceParams, device_sample
from paged_core.errors import SettingsError
from paged_core.interfaces.attention import (
    AttentionBackend,
    AttentionBatch,
    LayerAttention,
)
from paged_core.interfaces.layer import LayerSpec
from paged_core.interfaces.runner import Runner
from paged_core.log import get_logger

if TYPE_CHECKING:
    from paged_core.settings.schema import EngineSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryProfile:
    """Memory of a device before the cache is allocated, and needs beside the cache."""

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
        device_sample(logits, _any_params(logits))

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
    alike = [replace(layer, sinks=None) for layer in layers]
    caches = {layer: layout.allocate_cache(layer, num_blocks, layer.device) for layer in set(alike)}
    return [backend.bind(*pair) for pair in zip(layers, map(caches.get, alike), strict=True)]


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


_GIB = 1 << 30
_UTILISATION = 0.9
"""Share of a profiled device's memory; the rest is for graphs, fragments and libraries."""
_DEVICE_SHARE = 0.8
"""Share of the memory that the weights leave free; the rest is for activations."""
_CPU_SHARE = 0.25
_CPU_LIMIT = 4 * _GIB
"""Unless settings ask for more: the memory of a CPU is shared with all other processes."""
_HOST_SHARE = 0.5
_PINNED_LIMIT = 8 * _GIB
"""Unless settings ask for more: pinned memory is taken at once, and never paged out."""
_UNKNOWN_LENGTH = 2048

log = get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSize:
    """Blocks of the cache, and tokens of the longest sequence."""

    num_blocks: int
    num_host_blocks: int
    max_model_len: int


def decide_cache_size(
    settings: EngineSettings,
    layers: Sequence[LayerSpec],
    backend: AttentionBackend,
    *,
    model_length: int | None,
    max_num_seqs: int,
    needs_host_blocks: bool,
    profile: MemoryProfile | None = None,
    num_ranks: int = 1,
) -> CacheSize:
    """Return the size of the cache for ``layers``, whose weights are loaded already.

    The default on a device that is profiled is nine tenths of its memory, less what is used, less
    what the largest step takes; elsewhere a share of the free memory. It is never more than the
    sequences that may run at once could fill.

    Args:
        model_length: positions of the model; ``None``: it does not say.
        max_num_seqs: sequences that may run at once.
        needs_host_blocks: whether preemption may swap.
        profile: of the device, if there is one and :func:`needs_profile` says so.
        num_ranks: processes that share the memory of the machine, each with a cache like this.

    Raises:
        SettingsError: the settings ask for more memory than is free, or for more tokens than the
            model has positions.
    """
    length = longest_sequence(settings, model_length)
    layout = layout_of(backend)
    block_bytes = sum(layout.block_bytes(layer) for layer in layers)
    device = torch.device(layers[0].device)
    most = max_num_seqs * -(-length // settings.block_size)
    num_blocks = _device_blocks(settings, block_bytes, device, most, profile, num_ranks)
    pool = num_blocks * settings.block_size
    if settings.max_model_len is None and pool < length:
        log.warning(
            "model_length_lowered",
            from_tokens=length,
            to_tokens=pool,
            reason=f"the cache holds {num_blocks} blocks of {settings.block_size} tokens",
        )
        length = pool
    return CacheSize(
        num_blocks=num_blocks,
        num_host_blocks=_host_blocks(
            settings, block_bytes, num_blocks, device, num_ranks, needed=needs_host_blocks
        ),
        max_model_len=length,
    )


def needs_profile(settings: EngineSettings) -> bool:
    """Return True if the size of the cache depends on what else the device has to hold."""
    asked = settings.kv_cache_memory
    return settings.num_blocks is None and (asked is None or isinstance(asked, float))


def longest_sequence(settings: EngineSettings, model_length: int | None) -> int:
    """Return the tokens that a sequence may have if the cache has room for it.

    Raises:
        SettingsError: the settings ask for more than the model has positions.
    """
    asked = settings.max_model_len
    if asked is None:
        if model_length is None:
            log.warning("model_length_unknown", assumed_tokens=_UNKNOWN_LENGTH)
        return model_length or _UNKNOWN_LENGTH
    if model_length is not None and asked > model_length:
        raise SettingsError(
            f"max_model_len: {asked} is more than the {model_length} positions of the model; set "
            f"it to {model_length} or less, or leave it out"
        )
    return asked


def _device_blocks(
    settings: EngineSettings,
    block_bytes: int,
    device: torch.device,
    most: int,
    profile: MemoryProfile | None,
    num_ranks: int,
) -> int:
    free = _free_share(device, num_ranks) if profile is None else _free(profile)
    asked = settings.num_blocks
    if asked is None:
        budget = _budget(settings, free, device, profile)
        return _fitting_blocks(settings, block_bytes, budget, device, most)
    if asked * block_bytes > free:
        raise SettingsError(
            f"num_blocks: {asked} blocks take {_size(asked * block_bytes)}, and {_size(free)} are "
            f"free on {device}; set it to {free // block_bytes} or less, or leave it out"
        )
    return asked


def _free_share(device: torch.device, num_ranks: int) -> int:
    """Return what one of the ranks may take; each has a device of its own, if it is no CPU."""
    return free_memory(device) // (num_ranks if device.type == "cpu" else 1)


def _free(profile: MemoryProfile) -> int:
    """Return what is free while the largest step runs."""
    return max(0, profile.memory.free - profile.activations)


def _budget(
    settings: EngineSettings, free: int, device: torch.device, profile: MemoryProfile | None
) -> int:
    """Return the bytes that the cache may take."""
    asked = settings.kv_cache_memory
    if isinstance(asked, float):
        return int(free * asked)
    if asked is not None:
        if asked > free:
            raise SettingsError(
                f"kv_cache_memory: {_size(asked)} are asked for and {_size(free)} are free on "
                f"{device}; lower it, or leave it out"
            )
        return asked
    if profile is not None:
        unused = profile.memory.total - int(profile.memory.total * _UTILISATION)
        return max(0, free - unused)
    if device.type == "cpu":
        return min(int(free * _CPU_SHARE), _CPU_LIMIT)
    return int(free * _DEVICE_SHARE)


def _fitting_blocks(
    settings: EngineSettings, block_bytes: int, budget: int, device: torch.device, most: int
) -> int:
    num_blocks = budget // block_bytes
    if num_blocks < 1:
        raise SettingsError(
            f"the cache may take {_size(budget)} on {device}, and one block of "
            f"{settings.block_size} tokens takes {_size(block_bytes)}; raise kv_cache_memory or "
            "lower block_size"
        )
    return min(num_blocks, most)


def _host_blocks(
    settings: EngineSettings,
    block_bytes: int,
    num_blocks: int,
    device: torch.device,
    num_ranks: int,
    *,
    needed: bool,
) -> int:
    free = _free_share(torch.device("cpu"), num_ranks)
    if device.type == "cpu":
        free = max(0, free - num_blocks * block_bytes)
    asked = settings.num_host_blocks
    if asked is not None:
        if asked * block_bytes > free:
            raise SettingsError(
                f"num_host_blocks: {asked} blocks take {_size(asked * block_bytes)}, and "
                f"{_size(free)} of memory are free; lower it, or leave it out"
            )
        return asked
    if not needed:
        return 0
    budget = int(free * _HOST_SHARE)
    if device.type == "cuda":
        budget = min(budget, _PINNED_LIMIT)
    fitting = budget // block_bytes
    if fitting < num_blocks:
        log.warning("host_blocks_lowered", from_blocks=num_blocks, to_blocks=fitting)
    return min(num_blocks, fitting)


def _size(num_bytes: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if num_bytes >= size:
            return f"{num_bytes / size:.1f} {unit}"
    return f"{num_bytes} bytes"
