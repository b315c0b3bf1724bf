"""How many blocks fit on the device and on the host, and how long a sequence may be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from paged_backends.attention.cache import layout_of
from paged_backends.device import free_memory
from paged_backends.executors.profile_pass import MemoryProfile
from paged_core.errors import SettingsError
from paged_core.interfaces.attention import AttentionBackend
from paged_core.interfaces.layer import LayerSpec
from paged_core.log import get_logger

if TYPE_CHECKING:
    from paged_core.settings import EngineSettings

_GIB = 1 << 30
_UTILISATION = 0.9
"""Of all memory of a device that is profiled; the rest is for graphs, fragments and libraries."""
_DEVICE_SHARE = 0.8
"""Of the memory that is free after the weights are loaded; the rest is for activations."""
_CPU_SHARE = 0.25
_CPU_LIMIT = 4 * _GIB
"""Unless settings ask for more: the memory of a CPU is shared with all other processes."""
_HOST_SHARE = 0.5
_PINNED_LIMIT = 8 * _GIB
"""Unless settings ask for more: pinned memory is taken at once, and never paged out."""
_UNKNOWN_LENGTH = 2048
_DEFAULT_NUM_SEQS = 256

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
    needs_host_blocks: bool,
    profile: MemoryProfile | None = None,
) -> CacheSize:
    """Return the size of the cache for ``layers``, whose weights are loaded already.

    The default on a device that is profiled is nine tenths of its memory, less what is used, less
    what the largest step takes; elsewhere a share of the free memory. It is never more than the
    sequences that may run at once could fill.

    Args:
        model_length: positions of the model; ``None``: it does not say.
        needs_host_blocks: whether preemption may swap.
        profile: of the device, if there is one and :func:`needs_profile` says so.

    Raises:
        SettingsError: the settings ask for more memory than is free, or for more tokens than the
            model has positions.
    """
    length = longest_sequence(settings, model_length)
    layout = layout_of(backend)
    block_bytes = sum(layout.block_bytes(layer) for layer in layers)
    device = torch.device(layers[0].device)
    num_blocks = _device_blocks(settings, block_bytes, device, length, profile)
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
            settings, block_bytes, num_blocks, device, needed=needs_host_blocks
        ),
        max_model_len=length,
    )


def needs_profile(settings: EngineSettings) -> bool:
    """Whether the size of the cache depends on what else the device has to hold."""
    asked = settings.kv_cache_memory
    return settings.num_blocks is None and (asked is None or isinstance(asked, float))


def max_num_seqs(settings: EngineSettings) -> int:
    """Return how many sequences may run at once."""
    return getattr(settings.scheduler, "max_num_seqs", None) or _DEFAULT_NUM_SEQS


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
    length: int,
    profile: MemoryProfile | None,
) -> int:
    free, asked = free_memory(device) if profile is None else _free(profile), settings.num_blocks
    if asked is None:
        budget = _budget(settings, free, device, profile)
        return _fitting_blocks(settings, block_bytes, budget, device, length)
    if asked * block_bytes > free:
        raise SettingsError(
            f"num_blocks: {asked} blocks take {_size(asked * block_bytes)}, and {_size(free)} are "
            f"free on {device}; set it to {free // block_bytes} or less, or leave it out"
        )
    return asked


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
    settings: EngineSettings, block_bytes: int, budget: int, device: torch.device, length: int
) -> int:
    num_blocks = budget // block_bytes
    if num_blocks < 1:
        raise SettingsError(
            f"the cache may take {_size(budget)} on {device}, and one block of "
            f"{settings.block_size} tokens takes {_size(block_bytes)}; raise kv_cache_memory or "
            "lower block_size"
        )
    return min(num_blocks, max_num_seqs(settings) * -(-length // settings.block_size))


def _host_blocks(
    settings: EngineSettings,
    block_bytes: int,
    num_blocks: int,
    device: torch.device,
    *,
    needed: bool,
) -> int:
    free = free_memory(torch.device("cpu"))
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
