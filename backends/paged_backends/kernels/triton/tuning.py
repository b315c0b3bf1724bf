"""Sizes of launches: tiles of attention by head dimension, type and GPU, and splits of keys."""

from __future__ import annotations

from dataclasses import dataclass

Capability = tuple[int, int]
"""Compute capability of a GPU: (9, 0) is Hopper's."""

_LITTLE_SHARED_MEMORY = ((8, 6), (8, 7), (8, 9), (12, 0), (12, 1))
"""GPUs of which a thread block can use some 99 KB of shared memory; others have 163 KB or more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TileSizes:
    """Tile sizes of one kernel."""

    rows: int
    """Queries times heads of a group; for decoding, 16 suffice for most groups."""
    keys: int
    num_warps: int
    num_stages: int
    """Tiles of keys that are in flight at once, and the one that is computed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """Launches of the kernels of one kind of layer."""

    write_tokens: int
    """Tokens that a program writes."""
    prefill: TileSizes
    decode: TileSizes
    least_tiles: int
    """Tiles of keys of the shortest split; below, merging costs more than it gains."""


INTERPRETED = Tuning(
    write_tokens=2048,
    prefill=TileSizes(rows=256, keys=256, num_warps=1, num_stages=1),
    decode=TileSizes(rows=16, keys=512, num_warps=1, num_stages=1),
    least_tiles=1,
)
"""An operation of the interpreter takes tens of microseconds whatever its size."""


def tuning(dim: int, itemsize: int, capability: Capability, *, float8: bool = False) -> Tuning:
    """Return the sizes for a GPU.

    Args:
        dim: head_dim, padded to a power of two.
        itemsize: bytes of a number of the layer's dtype.
        capability: of the GPU.
        float8: whether the cache is in float8, which is converted to the layer's dtype.
    """
    has_little_memory = capability in _LITTLE_SHARED_MEMORY
    has_warpgroups = capability[0] in (9, 10)
    if itemsize == 4:
        # float32 is not multiplied by tensor cores: large tiles would spill, and compile for long
        keys = 32 if dim <= 64 else 16
        prefill = TileSizes(rows=16, keys=keys, num_warps=4, num_stages=2)
        decode = TileSizes(rows=16, keys=keys, num_warps=4, num_stages=2)
    elif dim <= 128:
        stages = 2 if has_little_memory and dim == 128 else 3
        prefill = (
            TileSizes(rows=128, keys=64, num_warps=4 if dim <= 64 else 8, num_stages=stages)
            if has_warpgroups
            else TileSizes(rows=32 if float8 else 64, keys=32, num_warps=4, num_stages=stages)
        )
        decode = TileSizes(rows=16, keys=64, num_warps=4, num_stages=stages)
    else:
        prefill = (
            TileSizes(rows=64, keys=32, num_warps=4, num_stages=2)
            if has_warpgroups
            else TileSizes(rows=32, keys=32, num_warps=4, num_stages=2)
        )
        decode = TileSizes(rows=16, keys=32, num_warps=4, num_stages=2 if has_little_memory else 3)
    return Tuning(write_tokens=4, prefill=prefill, decode=decode, least_tiles=256 // decode.keys)
