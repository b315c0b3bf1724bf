"""What an evictor's operations cost, and how that grows."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from random import Random

from paged_core.interfaces.evictor import BlockInfo, Evictor
from paged_core.sequence import BlockId
from paged_core.testing.work import Watched, work


def evictor_cost(make: Callable[[int], Evictor], num_blocks: int, number: type[int]) -> float:
    """Return what it costs that a block leaves, comes back and goes, among ``num_blocks`` idle.

    The mean over as many times, so that work put off is counted.

    Args:
        make: makes an evictor for so many blocks.
        number: the type of block numbers and of what is known of a block:
            :class:`~paged_core.testing.work.Watched` counts comparisons, any other instructions.
    """
    evictor, random = make(num_blocks), Random(0)
    idle = [BlockId(number(block)) for block in range(num_blocks)]
    clock = count(1)

    def add(block: BlockId) -> None:
        now = next(clock)
        facts = (random.randrange(1, 4000), random.randrange(4), now // 4, now)
        evictor.add(block, BlockInfo(*map(number, facts)))

    def leave_come_back_and_go() -> None:
        for _ in range(num_blocks):
            block = random.choice(idle)
            evictor.remove(block)
            add(block)
            add(evictor.evict())

    for block in idle:
        add(block)
    if number is Watched:
        Watched.touched = 0
        leave_come_back_and_go()
        return Watched.touched / num_blocks
    return work(leave_come_back_and_go) / num_blocks
