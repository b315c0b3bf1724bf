"""Block allocators driven side by side with a model, by written and by drawn walks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import cast

import pytest

from paged_core.errors import OutOfBlocks
from paged_core.ids import BlockId, BlockKey
from paged_core.interfaces.allocator import (
    BlockAllocator,
    SupportsLastStep,
    SupportsPrefixCache,
)
from paged_core.interfaces.evictor import BlockInfo, Evictor

Content = tuple[object, tuple[tuple[int, ...], ...]]
"""Extra key, and the tokens of every block up to and including this one."""


class PlainEvictor(Evictor):
    """Evicts a block that is neither idle longest nor came last, where it holds three, and checks
    the calls that it gets."""

    def __init__(self) -> None:
        self.held: dict[BlockId, BlockInfo] = {}

    def add(self, block: BlockId, info: BlockInfo, /) -> None:
        assert block not in self.held, f"block {block} was added to the evictor twice"
        self.held[block] = info

    def remove(self, block: BlockId, /) -> None:
        del self.held[block]

    def evict(self) -> BlockId:
        if not self.held:
            raise OutOfBlocks("no block is idle")
        block = [*self.held][len(self.held) // 2]
        del self.held[block]
        return BlockId(int(block))

    def __len__(self) -> int:
        return len(self.held)


class AllocatorModel:
    """Blocks are allocated, shared and freed; the model counts references.

    Raises:
        AssertionError: from any method; the message says what came and what was expected.
    """

    capacity = 8

    def __init__(self, make: Callable[[int, Evictor], BlockAllocator], block_size: int) -> None:
        self.evictor = PlainEvictor()
        self.real = make(self.capacity, self.evictor)
        self.block_size = block_size
        self.references: Counter[BlockId] = Counter()
        self.taken: tuple[list[BlockId], list[BlockId]] = [], []
        """The last that it has allocated, and a copy."""

    @property
    def used(self) -> list[BlockId]:
        """Blocks that are referenced."""
        return sorted(block for block, count in self.references.items() if count)

    @property
    def shareable(self) -> list[BlockId]:
        """Blocks that may be referenced once more."""
        return self.used

    def allocate(self, count: int) -> None:
        """Take blocks; where too few are free, nothing may change."""
        free = self.capacity - len(self.used)
        if count > free:
            before = self.findings()
            with pytest.raises(OutOfBlocks):
                self.real.allocate(count)
            assert self.real.num_free == free, "an allocation that failed took blocks"
            assert self.findings() == before, "an allocation that failed lost cached blocks"
            return
        taken = self.real.allocate(count)
        assert self.taken[0] == self.taken[1], "allocate() changed an earlier result"
        self.taken = taken, [*taken]
        assert len(taken) == count, f"{count} blocks were asked for, it allocated {taken}"
        assert len(set(taken)) == count, f"it allocated a block twice: {taken}"
        in_use = sorted(set(taken) & set(self.used))
        assert not in_use, f"it allocated {in_use}, which are in use"
        unknown = sorted(set(taken) - set(range(self.capacity)))
        assert not unknown, f"it allocated {unknown}, which do not exist"
        for block in taken:
            self.forget(block)
            self.references[block] = 1
        self.check()

    def share(self, blocks: Sequence[BlockId]) -> None:
        """Reference each once more."""
        self.real.share(iter(blocks))
        self.references.update(blocks)
        self.check()

    def free(self, blocks: Sequence[BlockId]) -> None:
        """Drop a reference of each."""
        self.real.free(iter(blocks))
        self.references.subtract(blocks)
        self.check()

    def check(self) -> None:
        """Compare what can be asked."""
        num_free, expected = self.real.num_free, self.capacity - len(self.used)
        assert num_free == expected, f"{num_free} blocks are free, {expected} should be"
        for number in range(self.capacity):
            block = BlockId(number)
            count, expected = self.real.ref_count(block), self.references[block]
            assert count == expected, f"block {block} has {count} references, not {expected}"

    def finish(self) -> None:
        """At the end, all blocks can be freed, and allocated again."""
        for block in self.used:
            self.real.free([block] * self.references[block])
        assert self.real.num_free == self.capacity, "blocks were lost"
        taken = sorted(self.real.allocate(self.capacity))
        assert taken == list(range(self.capacity)), f"it allocated {taken} as all of its blocks"

    def walk(self, num_actions: int, seed: int = 0) -> None:
        """Take so many actions, the same for the same seed, and finish."""
        random = Random(seed)
        for _ in range(num_actions):
            self.act(random.randrange(8), random)
        self.finish()

    def act(self, action: int, random: Random) -> None:
        """Take the action of this number: 0 to 7."""
        if action < 3:
            self.allocate(random.randint(0, 4))
        elif action < 5 and self.shareable:
            self.share(random.sample(self.shareable, min(len(self.shareable), 2)))
        elif self.used:
            blocks = random.sample(self.used, min(len(self.used), random.randint(1, 3)))
            wholly = random.randrange(2)
            self.free([b for b in blocks for _ in range(self.references[b] if wholly else 1)])

    def forget(self, block: BlockId) -> None:
        """The block was allocated, so its old content is gone."""

    def findings(self) -> object:
        """All cached content that the allocator finds."""
        return None


class PrefixCacheModel(AllocatorModel):
    """Blocks are also cached, looked up, uncached and evicted.

    The model knows the content of every block, in the order of publication. It does not predict
    what is evicted; it learns it when a block is allocated. What the evictor is told is compared
    with what it knows.
    """

    def __init__(self, make: Callable[[int, Evictor], BlockAllocator], block_size: int) -> None:
        super().__init__(make, block_size)
        self.prefixes = cast("SupportsPrefixCache", self.real)
        self.cached: dict[BlockId, Content] = {}
        self.hits: Counter[BlockId] = Counter()
        """References that were added to each cached block."""
        self.others: Counter[BlockId] = Counter()
        """References from before it was cached as it is, or of a merge: they may be hits."""
        self.last_use = self.now = -1
        self.last_steps: dict[BlockId, int] = {}
        """The last steps of blocks that were released since they were cached."""
        self.found: tuple[list[BlockId], list[BlockId]] = [], []
        """The last that it has found, and a copy."""

    @property
    def shareable(self) -> list[BlockId]:
        return sorted({*self.used, *self.cached})

    def share(self, blocks: Sequence[BlockId]) -> None:
        for block in blocks:
            (self.hits if block in self.cached else self.others)[block] += 1
        super().share(blocks)

    def free(self, blocks: Sequence[BlockId]) -> None:
        """Free blocks or, each second time, release them after a step, of which the first is 0."""
        before = dict(self.evictor.held)
        self.now += 1
        if isinstance(self.real, SupportsLastStep) and self.now % 2:
            step = self.now // 64
            self.real.release(iter(blocks), step)
            self.last_steps.update((block, step) for block in blocks if block in self.cached)
            self.references.subtract(blocks)
            self.check()
        else:
            super().free(blocks)
        told = {i.last_use for block, i in self.evictor.held.items() if block not in before}
        assert len(told) <= 1, f"blocks that are freed together have {told} as last_use"
        for last_use in told:
            assert last_use > self.last_use, (
                f"last_use is {last_use}, and was {self.last_use} when others were freed before"
            )
            self.last_use = last_use

    @property
    def not_cached(self) -> list[BlockId]:
        """Blocks that are used and have no known content."""
        return [block for block in self.used if block not in self.cached]

    def cache(self, block: BlockId, content: Content) -> None:
        """Cache a block, which may be merged into an equal one."""
        equal = [other for other, held in self.cached.items() if held == content]
        held = self.prefixes.cache(block, keys_of(content)[-1])
        if held == block:
            self.cached[block] = content
        else:
            assert held in equal, f"block {block} was merged into {held}, which has other content"
            self.references[held] += 1
            self.references[block] -= 1
            self.others[held] += 1
        self.check()

    def uncache(self, blocks: Sequence[BlockId]) -> None:
        """Make cached blocks unfindable, among others."""
        others = [BlockId(n) for n in range(self.capacity) if n not in self.cached]
        self.prefixes.uncache(iter([*others[:2], *blocks, *others[2:]]))
        for block in blocks:
            del self.cached[block]
            self.last_steps.pop(block, None)
            self.others[block] += self.hits.pop(block, 0)
        self.check()

    def look_up(self, content: Content) -> None:
        """Find the leading blocks of some content."""
        before = self.real.num_free
        self._check_found(content)
        assert self.prefixes.look_up([]) == [], "it found blocks of no content"
        assert self.real.num_free == before, "a look-up changed the number of free blocks"

    def check(self) -> None:
        super().check()
        told = self.evictor.held
        idle = [block for block in self.cached if not self.references[block]]
        assert sorted(told) == sorted(idle), (
            f"the evictor was given {sorted(told)}, the blocks that are cached and free are "
            f"{sorted(idle)}"
        )
        ranks = [told[block].cache_order for block in idle]
        assert ranks == sorted(set(ranks)), (
            f"{idle} were cached in this order, cache_order is {ranks}"
        )
        for block, info in told.items():
            self._check_told(block, info)
        for content in set(self.cached.values()):
            self._check_found(content)

    def _check_told(self, block: BlockId, info: BlockInfo) -> None:
        content = self.cached[block]
        of, length, least = f"of block {block}: {info}", len(content[1]), self.hits[block]
        assert info.num_tokens == length * self.block_size, f"num_tokens is wrong {of}"
        assert least <= info.num_hits <= least + self.others[block], (
            f"{least} references were added while it was cached, num_hits is wrong {of}"
        )
        if block in self.last_steps:
            last = self.last_steps[block]
            assert info.last_step == last, f"it was released after step {last} {of}"
        parent, own = [None, *map(hash, keys_of(content))][-2:]
        assert info.content_key == own, f"content_key is not hash(key), {own} {of}"
        assert info.parent_key == parent, (
            f"parent_key is not that of the key's parent, {parent} {of}"
        )

    def _check_found(self, content: Content) -> None:
        told = list(self.evictor.held.items())
        found, expected = self.prefixes.look_up(keys_of(content)), self.expected(content)
        assert self.found[0] == self.found[1], "look_up() changed an earlier result"
        self.found = found, [*found]
        assert list(self.evictor.held.items()) == told, "a look-up changed what the evictor holds"
        assert found == expected, (
            f"it found blocks {found} and not {expected}, which were cached first and still "
            f"hold {content}"
        )

    def expected(self, content: Content) -> list[BlockId]:
        """Blocks that a look-up has to find."""
        found: list[BlockId] = []
        extra, chain = content
        for length in range(1, len(chain) + 1):
            wanted = extra, chain[:length]
            first = next((b for b, held in self.cached.items() if held == wanted), None)
            if first is None:
                break
            found.append(first)
        return found

    def act(self, action: int, random: Random) -> None:
        if action == 2 and self.cached:
            self.uncache(random.sample(sorted(self.cached), 1))
        elif action in (3, 7) and self.not_cached:
            self.cache(random.choice(self.not_cached), self._content(random))
        elif action == 6:
            self.look_up(self._content(random))
        else:
            super().act(action, random)

    def _content(self, random: Random) -> Content:
        """Some content, often equal to what is cached: over a tiny alphabet, or the same."""
        if self.cached and not random.randrange(3):
            return random.choice([*self.cached.values()])
        length = random.choice((1, 1, 1, 2, 3))
        blocks = [tuple(random.choices((0, 1), k=self.block_size)) for _ in range(length)]
        return random.choice((None, None, "salt", "pepper")), tuple(blocks)

    def forget(self, block: BlockId) -> None:
        for of in (self.cached, self.hits, self.others, self.last_steps):
            of.pop(block, None)

    def findings(self) -> object:
        contents = sorted(set(self.cached.values()), key=repr)
        return [self.prefixes.look_up(keys_of(content)) for content in contents]


def keys_of(content: Content) -> list[BlockKey]:
    """The key of each block of some content."""
    extra, chain = content
    keys: list[BlockKey] = []
    for tokens in chain:
        keys.append(BlockKey(keys[-1] if keys else None, tokens, extra))
    return keys
