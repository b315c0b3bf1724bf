"""What an evictor's operations cost, and how that grows."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from paged_core.ids import BlockId
from paged_core.interfaces.evictor import BlockInfo, Evictor
from paged_testing.work import Watched, work


def evictor_cost(make: Callable[[int], Evictor], num_blocks: int, number: type[int]) -> float:
    """Return the cost of removing, adding and evicting a block among ``num_blocks`` idle ones.

    The mean over ``num_blocks`` rounds, so that deferred work is counted. Some content returns
    after its eviction, and some requests finish later than others that ran after them.

    Args:
        make: makes an evictor for a number of blocks.
        number: the type of block numbers and of the fields of a block:
            :class:`~paged_testing.work.Watched` counts comparisons, any other instructions.
    """
    evictor, random = make(num_blocks), Random(0)
    idle = [BlockId(number(block)) for block in range(num_blocks)]
    infos = iter([_info(now, num_blocks, random, number) for now in range(1, 3 * num_blocks + 1)])
    used = random.choices(idle, k=num_blocks)

    def remove_add_evict() -> None:
        for block in used:
            evictor.remove(block)
            evictor.add(block, next(infos))
            evictor.add(evictor.evict(), next(infos))

    for block in idle:
        evictor.add(block, next(infos))
    if number is Watched:
        Watched.touched = 0
        remove_add_evict()
        return Watched.touched / num_blocks
    return work(remove_add_evict) / num_blocks


def _info(now: int, num_blocks: int, random: Random, number: type[int]) -> BlockInfo:
    departure = now // 4
    facts = {
        "num_tokens": random.randrange(1, 4000),
        "num_hits": random.randrange(4),
        "last_use": departure,
        "published": now,
        "content_key": random.randrange(2 * num_blocks),
        "last_step": departure - random.choice((0, 0, 0, 2)),
    }
    return BlockInfo(**{name: number(fact) for name, fact in facts.items()})
