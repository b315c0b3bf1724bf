"""Evictors driven side by side with a model, the list of idle blocks; what their calls cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random

import pytest

from paged_core.errors import OutOfBlocks
from paged_core.ids import BlockId
from paged_core.interfaces.evictor import BlockInfo, Evictor, SupportsDemand
from paged_testing.use import instructions, items

CONTENTS = 8
"""Contents that the model uses: a tree, in which two follow each of the first ones."""


def other_key(content_key: int) -> int:
    """Another key for the same content: neither the order nor the low digits of keys matter."""
    return -(content_key + 1) << 40


@dataclass(frozen=True)
class IdleBlock:
    """A block that the evictor under test holds."""

    block: BlockId
    info: BlockInfo
    wanted: bool = False
    """True if a waiting request wants its content, as evictors are told that ask for it."""


class EvictorModel:
    """Blocks become idle, are used again and are evicted, in the evictor and in the model.

    A second evictor with the same calls, and a third with other content keys, must evict the same.

    Raises:
        AssertionError: from any method; the message says what came and what was expected.
    """

    num_blocks = 10

    def __init__(
        self,
        make: Callable[[int], Evictor],
        expected: Callable[[Sequence[IdleBlock]], BlockId | None],
    ) -> None:
        self.real, self.twin, self.renamed = (make(self.num_blocks) for _ in range(3))
        self.expected = expected
        self.held: list[IdleBlock] = []
        self.used: dict[BlockId, BlockInfo] = {}
        self.evicted: list[BlockId] = []
        self.departures = 0
        self.publications = 0
        self.demand: set[int] = set()
        """Content that waiting requests want."""

    def leave(
        self,
        blocks: Sequence[int],
        contents: Sequence[int | None],
        hits: Sequence[int],
        longest: int,
        steps_ago: int,
    ) -> None:
        """A request frees its blocks, the last one, which ends the longest prefix, first.

        Args:
            contents: of these blocks, and of those before them, if any.
            longest: blocks of the longest prefix.
        """
        known = {idle.block for idle in self.held}
        leaving = [BlockId(block) for block in blocks if block not in known]
        self.departures += 1
        found: dict[int, IdleBlock] = {}
        for place, block in enumerate(leaving):
            self.publications += 1
            info = BlockInfo(
                4 * (longest - place),
                hits[place],
                self.departures,
                self.publications,
                contents[place],
                self.departures - steps_ago,
                contents[place + 1] if place + 1 < len(contents) else None,
            )
            if was := self.used.get(block):  # it has the content that it had
                info = replace(
                    was,
                    num_hits=was.num_hits + 1 + hits[place],
                    last_use=info.last_use,
                    last_step=info.last_step,
                )
            if info.num_tokens not in found:
                found[info.num_tokens] = IdleBlock(block, info)
        for _, idle in sorted(found.items(), reverse=True):
            self.used.pop(idle.block, None)
            self._add(idle)

    def come_back(self, idle: IdleBlock, *, is_forgotten: bool) -> None:
        """A block is used again for its content, or it is uncached because it was never computed.

        A uncached block (``is_forgotten``) is added later with other content.
        """
        for evictor in (self.real, self.twin, self.renamed):
            evictor.remove(idle.block)
        self.held.remove(idle)
        if not is_forgotten:
            self.used[idle.block] = idle.info
        self._check_count()

    def want(self, content: int) -> None:
        """A waiting request comes to want some content, or the only one that does has gone."""
        self.demand ^= {content}
        evictors = ((self.real, content), (self.twin, content), (self.renamed, other_key(content)))
        for evictor, key in evictors:
            if isinstance(evictor, SupportsDemand):
                evictor.wanted(key, content in self.demand)
        self._check_count()

    def remove_absent(self, block: int) -> None:
        """Removing a block that is not held raises, and changes nothing."""
        if all(idle.block != block for idle in self.held):
            with pytest.raises(KeyError):
                self.real.remove(BlockId(block))
            self._check_count()

    def evict(self) -> None:
        """Evict a block, if one is idle."""
        if not self.held:
            with pytest.raises(OutOfBlocks):
                self.real.evict()
            return
        held = [replace(idle, wanted=idle.info.content_key in self.demand) for idle in self.held]
        wanted = self.expected(held)
        block, of_twin, of_renamed = (e.evict() for e in (self.real, self.twin, self.renamed))
        self.evicted.append(block)
        gone = [idle for idle in self.held if idle.block == block]
        self.held = [idle for idle in self.held if idle.block != block]
        assert gone, f"evicted block {block}, which it does not hold"
        assert wanted is None or block == wanted, (
            f"evicted {gone[0]}, but block {wanted} must be evicted first of {held}"
        )
        assert of_twin == block, (
            f"evicted block {block}, a second evictor with the same seed and the same calls block "
            f"{of_twin}: runs cannot be repeated"
        )
        assert of_renamed == block, (
            f"evicted block {block}, a second evictor with the same calls but other content keys "
            f"block {of_renamed}: content keys may only be compared for equality"
        )
        self._check_count()

    def finish(self) -> None:
        """At the end, every block can be evicted, once and in the expected order."""
        while self.held:
            self.evict()
        assert len(self.real) == 0, f"{len(self.real)} blocks are left of none"

    def walk(self, num_actions: int, seed: int = 0) -> list[BlockId]:
        """Take so many actions, the same for the same seed, and finish; return what is evicted."""
        random = Random(seed)
        for number in range(num_actions):
            action = random.randrange(8)
            if not number % 5:
                self.want(random.randrange(8))
            if action < 4:
                path: list[int | None] = [random.randrange(CONTENTS)]
                while path[-1]:
                    path.append((path[-1] - 1) // 2)
                count = random.randint(1, len(path))
                self.leave(
                    random.sample(range(self.num_blocks), count),
                    [None] * len(path) if not random.randrange(8) else path,
                    random.choices(range(4), k=count),
                    len(path),
                    random.choice((0, 0, 1, 3, 6)),
                )
            elif action == 4 and self.held:
                self.come_back(random.choice(self.held), is_forgotten=random.random() < 0.5)
            elif action == 5:
                self.remove_absent(random.randrange(self.num_blocks))
            else:
                self.evict()
        self.finish()
        return self.evicted

    def _add(self, idle: IdleBlock) -> None:
        block, info = idle.block, idle.info
        self.real.add(block, info)
        self.twin.add(block, replace(info))
        if info.content_key is not None:
            info = replace(info, content_key=other_key(info.content_key))
        if info.parent_key is not None:
            info = replace(info, parent_key=other_key(info.parent_key))
        self.renamed.add(block, info)
        self.held.append(idle)
        self._check_count()

    def _check_count(self) -> None:
        count, expected = len(self.real), len(self.held)
        assert count == expected, f"its length is {count}, it was given {expected} blocks to hold"


def evictor_cost(
    make: Callable[[int], Evictor],
    num_blocks: int,
    num_held: int,
    package: str,
    how: str = "",
) -> float:
    """Return the cost of removing, adding, evicting and counting among ``num_held`` idle blocks, in
    a chain also of telling what is wanted.

    The mean over ``num_blocks`` rounds, so that deferred work is counted. Some content returns
    after its eviction, and some requests finish later than others that ran after them.

    Args:
        make: makes an evictor for a number of blocks.
        num_held: blocks that stay idle; the others were, and are in use again.
        package: that of the evictor.
        how: ``a chain``: each block depends on the one before it, and all are wanted; ``hits
            alone``, of blocks that depend on nothing; ``alike``: all but one are of equal content,
            which depends on that one; ``built-ins``: many are left together, and only the work of
            built-ins counts, which is quick.
    """
    evictor, random, chained = make(num_blocks), Random(0), how == "a chain"
    idle = [BlockId(block) for block in range(num_blocks)]
    infos = iter([_info(now, num_blocks, random) for now in range(1, 5 * num_blocks + 1)])
    used = random.choices(idle[:num_held], k=num_blocks)
    demanding = evictor if isinstance(evictor, SupportsDemand) and chained else None

    def add(block: BlockId) -> None:
        info = next(infos)
        if how:
            before = {"a chain": idle[block - 1], "alike": 0}.get(how) if block else None
            content = min(block, 1) if how == "alike" else block
            info = replace(info, content_key=content, parent_key=before)
        if how == "built-ins":
            info = replace(info, num_tokens=8, last_use=info.cache_order // num_blocks, last_step=0)
        evictor.add(block, info)

    def remove_add_evict() -> None:
        for block in used:
            evictor.remove(block)
            add(block)
            if how != "hits alone":
                add(evictor.evict())
            len(evictor)
            if demanding:
                demanding.wanted(block, False)
                demanding.wanted(block, True)

    for block in idle:
        add(block)
        if demanding:
            demanding.wanted(block, True)
    for block in idle[num_held:]:
        evictor.remove(block)
    remove_add_evict()  # as much is remembered as may be
    if how == "built-ins":
        return items(remove_add_evict, package) / num_blocks
    return instructions(remove_add_evict, package, everywhere=True) / num_blocks


def _info(now: int, num_blocks: int, random: Random) -> BlockInfo:
    departure, content = now // 4, random.randrange(2 * num_blocks)
    return BlockInfo(
        num_tokens=random.randrange(1, 4000),
        num_hits=random.randrange(4) if now % 3 else num_blocks,
        last_use=departure,
        cache_order=now,
        content_key=content,
        last_step=departure - random.choice((0, 0, 0, 2)),
        parent_key=content // 2 if content else None,
    )
