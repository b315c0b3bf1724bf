"""The sizes of the caches that arms have: differences in them are easily overlooked."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from paged_core.settings import EngineSettings


def block_size_note(arms: Iterable[EngineSettings]) -> str | None:
    """Return what to say where blocks of several sizes make caches of several sizes; ``None``:
    nothing.
    """
    block_sizes: defaultdict[int, set[int]] = defaultdict(set)
    for settings in arms:
        if settings.num_blocks is not None:
            block_sizes[settings.num_blocks].add(settings.block_size)
    for num_blocks, sizes in block_sizes.items():
        if len(sizes) > 1:
            caches = ", ".join(f"{num_blocks * size:,} at {size}" for size in sorted(sizes))
            return (
                f"note: block_size changes the size of the cache, as num_blocks is {num_blocks:,} "
                f"everywhere (tokens: {caches}); to keep it, give kv_cache_memory instead"
            )
    return None
