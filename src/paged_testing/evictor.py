"""Conformance of evictors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from random import Random
from typing import Any, ClassVar

import pytest

from paged_core.engine.contexts import EvictorContext
from paged_core.errors import SettingsError, error_text
from paged_core.ids import BlockId
from paged_core.interfaces.evictor import BlockInfo, Evictor, SupportsDemand
from paged_core.requests.lookup_oracle import LookupOracle
from paged_testing.component import ComponentConformance
from paged_testing.evictor_model import (
    EvictorModel,
    IdleBlock,
    evictor_cost,
)
from paged_testing.repeats import ServesEveryWorkload
from paged_testing.use import bytes_left

TREE = {block: [block >> up for up in range(3, -1, -1) if block >> up] for block in range(1, 16)}
"""Blocks of a prefix tree, each with the path to it from the first one."""


_ALL_IDLE = {
    "a chain": ", each of which depends on another (telling what is wanted counts, too)",
    "hits alone": ", none of which depends on another or is evicted",
    "alike": ", which are of equal content and depend on one",
    "built-ins": ", in what built-ins go through",
}


class EvictorCases(ComponentConformance):
    """The cases of :class:`~paged_testing.EvictorConformance`."""

    slot: ClassVar[str] = "evictor"
    strands: ClassVar[bool] = True
    """False: it promises to evict no block on which another one that it holds depends."""

    def expected(self, held: Sequence[IdleBlock], /) -> BlockId | None:
        """Return the block that must be evicted first; ``None``: not specified.

        Args:
            held: never empty, in the order in which blocks were added: by the request that left
                them, and of each request the longest prefix first.
        """
        return None

    def make(self, num_blocks: int = 16) -> Evictor:
        """A fresh evictor for this many blocks; an evictor for replays gets an empty future."""
        return self.make_foreseeing(LookupOracle(), num_blocks)

    def make_foreseeing(self, future: LookupOracle | None, num_blocks: int = 16) -> Evictor:
        """A fresh evictor that gets this future; ``None``: as in a live engine."""
        context = EvictorContext(num_blocks=num_blocks, block_size=4, seed=0, future=future)
        made = self.build(context)
        assert isinstance(made, Evictor)
        return made

    def model(self) -> EvictorModel:
        """Fresh evictors with their model."""
        return EvictorModel(self.make, self.expected)

    def walk(self, num_actions: int, seed: int) -> list[BlockId]:
        """Take so many actions, in fresh evictors and in their model; return what is evicted."""
        return self.model().walk(num_actions, seed)

    # ------------------------------------------------------------------ what it holds

    def test_evicts_every_block_once(self) -> None:
        model = self.model()
        for first in (0, 4):
            model.leave(range(first, first + 4), range(first, first + 4), [0, 1, 2, 3], 4, 0)
        model.finish()
        model.evict()  # of none: it raises, and goes on working
        model.leave([3], [3], [0], 1, 0)
        model.finish()
        assert len(self.make(1)) == 0
        evictor, large = self.make(1 << 17), [(1 << 16) + 1, 3, (1 << 17) - 1]
        for more, block in enumerate(large):
            evictor.add(BlockId(block), BlockInfo(1 << 20, 1 << 33, more + (1 << 41), 7, more, 1))
        assert len(evictor) == 3
        evicted = [evictor.evict() for _ in large]
        assert sorted(evicted) == sorted(large), f"of the blocks {large} it evicted {evicted}"

    def test_blocks_may_be_equal_in_all_it_is_told(self) -> None:
        """Such as blocks of equal content, whose requests ended in the same step."""
        infos, found = [BlockInfo(8, 1, 3, 2, 7, 3) for _ in range(6)], []
        for turn in (infos, infos[::-1]):
            evictor = self.make()
            for block, info in enumerate(turn):
                evictor.add(BlockId(block), info)
            assert len(evictor) == 6
            evictor.remove(BlockId(2))
            found.append([evictor.evict() for _ in range(5)])
        assert sorted(found[0]) == [0, 1, 3, 4, 5]
        assert found[0] == found[1], f"it evicts {found[0]}, and {found[1]} of other objects"

    def test_works_without_what_an_allocator_need_not_say(self) -> None:
        evictor = self.make()
        for block in range(4):
            evictor.add(BlockId(block), BlockInfo(4, 0, block))
        evictor.remove(BlockId(1))
        evictor.add(BlockId(1), BlockInfo(4, 1, 9))
        assert sorted(evictor.evict() for _ in range(4)) == [0, 1, 2, 3]

    def test_content_that_comes_back_is_known_by_its_key(self) -> None:
        """Whatever block it comes back in; and what has no key is no content that was there."""
        known, elsewhere = (self._evicted_after(5, (5, 6, 7), at) for at in ((0, 1, 2), (2, 0, 1)))
        assert known == elsewhere, (
            f"contents 5, 6 and 7, after 5 was evicted: {known} are evicted in blocks 0, 1 and 2, "
            f"{elsewhere} in blocks 2, 0 and 1: what was evicted is known by its content key"
        )
        other, none = (self._evicted_after(gone, (None, 6, 7), (0, 1, 2)) for gone in (99, None))
        assert other == none, (
            f"a block without a content key, 6 and 7: {other} are evicted, {none} after another "
            "block without a key was: that is not the same content"
        )

    def _evicted_after(
        self, gone: int | None, keys: Sequence[int | None], blocks: Sequence[int]
    ) -> list[int | None]:
        """Return in which order these contents are evicted after another one was, from block 0."""
        evictor = self.make()
        evictor.add(BlockId(0), BlockInfo(4, 0, 1, 1, gone, 1))
        evictor.evict()
        for now, (block, key) in enumerate(zip(blocks, keys, strict=True), 2):
            evictor.add(BlockId(block), BlockInfo(4 * now, now, now, now, key, now))  # no ties
        return [keys[blocks.index(evictor.evict())] for _ in keys]

    def test_works_in_a_live_engine_where_the_future_is_not_known(self) -> None:
        """Or refuses that with a SettingsError, as evictors for replays do."""
        try:
            EvictorModel(partial(self.make_foreseeing, None), lambda held, /: None).walk(150, 0)
        except SettingsError:
            return
        except (AttributeError, TypeError) as error:
            raise AssertionError(
                f"where `context.future` is None, as in a live engine: {error_text(error)}; look "
                "back instead, or raise a SettingsError when it is made"
            ) from error

    # ------------------------------------------------------------------ the order

    @pytest.mark.parametrize("seed", range(2))
    def test_evicts_the_same_as_the_model(self, seed: int) -> None:
        self.walk(300, seed)

    @pytest.mark.parametrize("seed", range(2))
    def test_blocks_that_others_depend_on_stay(self, seed: int) -> None:
        """Requests use paths of a small tree; their blocks become idle last block first."""
        evictor, random, held, hits = self.make(), Random(seed), dict[int, int](), Counter[int]()
        for now in range(1, 200):
            path = TREE[random.randint(1, 15)]
            for block in path:
                if held.pop(block, None) is not None:
                    evictor.remove(BlockId(block))
                    hits[block] += 1
            for length in range(len(path), 0, -1):
                block, parent = path[length - 1], path[length - 2] if length > 1 else None
                told = BlockInfo(4 * length, hits[block], now, block, block, now, parent)
                evictor.add(BlockId(block), told)
                held[block] = parent or 0
            while len(held) > 5:
                gone = evictor.evict()
                del held[gone], hits[gone]
                assert self.strands or gone not in held.values(), (
                    f"evicted block {gone}, on which another depends of {sorted(held)}"
                )

    # ------------------------------------------------------------------ the cost

    @pytest.mark.parametrize("held", ["all idle", "8 idle", *_ALL_IDLE])
    def test_instructions_grow_no_faster_than_a_logarithm(self, held: str) -> None:
        """Eight times the blocks may cost twice as much, which leaves a margin."""
        how, few = held if held in _ALL_IDLE else "", 512 if held == "built-ins" else 64
        small, large = (
            evictor_cost(self.make, n, 8 if held == "8 idle" else n, self.package, how)
            for n in (few, 8 * few)
        )
        of = _ALL_IDLE.get(held, ", all but 8 of them in use" if held == "8 idle" else "")
        assert large <= 2 * small + 8, (
            f"removing, adding, evicting and counting takes {small:.0f} instructions and items "
            f"among {few} blocks{of}, {large:.0f} among {8 * few}; it may grow no faster than the "
            "logarithm"
        )

    @pytest.mark.parametrize("what", ["evictions", "hits", "returns"])
    def test_its_memory_does_not_grow_with_the_number_of(self, what: str) -> None:
        """Contents are new all the time, and may each come back once after they were hit and
        evicted; or 16 blocks are never evicted, and one of the two of each content is hit."""
        evictor, clock = self.make(16), count(1)

        def add(block: BlockId) -> None:
            now = next(clock)
            info = BlockInfo(4, now // 16, now, 1 + block, block // 2, now)
            if what != "hits":
                key, step, parent = -now << 40, now - now % 3, (1 - now) << 40
                info = BlockInfo(4, now % 4, now, now, key, step, parent)
            if what == "returns":  # every second time
                info = replace(info, content_key=-(now // 2) << 40, num_hits=1 - now % 2)
            if isinstance(evictor, SupportsDemand) and info.content_key is not None:
                evictor.wanted(info.content_key, True)
                evictor.wanted(info.content_key, False)
            evictor.add(block, info)

        def go_on(times: int) -> None:
            for number in range(times):
                used = BlockId(2 * number % 16 if what == "hits" else number % 16)
                if what == "returns":
                    evictor.evict()
                else:
                    evictor.remove(used)
                add(used)
                if what == "evictions":
                    add(evictor.evict())

        for number in range(1 if what == "returns" else 16):
            add(BlockId(number))
        grown = bytes_left(partial(go_on, 3000), partial(go_on, 500))
        assert grown < 18_000, (
            f"3000 {what} among 16 blocks left {grown} bytes allocated; what is kept of content "
            "that was evicted or is in use must be bounded by the number of blocks"
        )


class EvictorConformance(ServesEveryWorkload, EvictorCases):
    """Subclass it for an evictor. State the exact order by overriding :meth:`expected`::

    class TestMru(EvictorConformance):
        component = "mru"

        def expected(self, held):
            return held[-1].block
    """

    bytes_free: ClassVar[int] = 8 << 10
    """Bytes of tables of what was evicted, which grow in leaps."""

    def check_written(self) -> None:
        super().check_written()
        self.walk(150, 0)

    def answers(self, beside: Mapping[str, Any] | None = None) -> dict[str, list[Any]]:
        """Also the blocks that are evicted in a walk."""
        return {**super().answers(beside), "a walk": self.walk(300, 0)}
