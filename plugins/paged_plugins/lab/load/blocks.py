"""Blocks as a share of those that are needed: the cache of a study without a limit, and a part."""

from __future__ import annotations

from math import ceil

from paged_core.settings.schema import EngineSettings
from paged_plugins.lab.simulation import MAX_BLOCKS
from paged_plugins.workloads.spec import WorkloadSpec


def unlimited(settings: EngineSettings, workload: WorkloadSpec, seed: int = 0) -> EngineSettings:
    """Return settings with as many blocks as all requests of a workload would fill at once."""
    total, _ = blocks_of(workload, seed, settings.block_size)
    # as many again may be of the host
    return settings.model_copy(update={"num_blocks": min(total, MAX_BLOCKS // 2)})


def blocks_of(workload: WorkloadSpec, seed: int, block_size: int) -> tuple[int, int]:
    """Return the blocks of all requests of a workload, with none shared, and of the largest."""
    total = largest = 0
    for first in workload.build().draw(seed):
        for request, prompt in first.whole_prompts():
            blocks = request.n * ceil((prompt + request.output) / block_size)
            total, largest = total + blocks, max(largest, blocks)
    return total, largest


def part_of(fraction: float, peak: int, largest: int, watermark: float) -> int:
    """Return a part of the peak of blocks, rounded up; the largest request fits in any case.

    Args:
        watermark: share of the blocks that is kept free when a request is admitted.
    """
    return max(ceil(fraction * peak), ceil(largest / (1 - watermark)))
