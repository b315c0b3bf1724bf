"""A cache that is written once before anything is measured."""

from __future__ import annotations

from paged_core.ids import BlockId
from paged_core.llm import LLM
from paged_core.step import StepInput

_BLOCKS = 256
"""Blocks written in one step."""


def write_cache(llm: LLM) -> None:
    """Write every block of the device once, by copying the first; the engine must hold no request.

    A system provides memory when it is first written to, and that can take longer than what is to
    be measured. All of the cache is resident afterwards.
    """
    executor, num_blocks = llm.engine.executor, llm.engine.capacity.num_blocks
    for begin in range(0, num_blocks, _BLOCKS):
        targets = [BlockId(block) for block in range(begin, min(begin + _BLOCKS, num_blocks))]
        sources = [BlockId(0)] * len(targets)
        executor.collect(
            executor.submit(StepInput(number=0, copy_sources=sources, copy_targets=targets))
        )
