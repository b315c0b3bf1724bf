"""Evictors that look at content: as their papers say, and none better than the clairvoyant one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paged_core.engine.contexts import EvictorContext
from paged_core.errors import OutOfBlocks
from paged_core.ids import BlockId
from paged_core.interfaces.evictor import BlockInfo, Evictor
from paged_core.requests.lookup_oracle import LookupOracle
from properties.evictor_models import (
    ArcModel,
    TwoQModel,
    fewest_misses,
)
from unit.engines import REGISTRY

SHARES = [(0.25, 0.5), (0.5, 1.0), (0.7, 0.0), (0.1, 0.3)]
"""``kin`` and ``kout``."""

capacities = st.integers(1, 5)
references = st.lists(st.integers(0, 7), max_size=60)
few_references = st.lists(st.integers(0, 4), max_size=14)


def make(name: str, future: LookupOracle | None = None, **options: Any) -> Evictor:
    component = REGISTRY.get("evictor", name)
    context = EvictorContext(num_blocks=64, block_size=4, seed=0, future=future or LookupOracle())
    made = component.load()(component.settings(name=name, **options), context)
    assert isinstance(made, Evictor)
    return made


def hits(
    evictor: Evictor, pages: Sequence[int], capacity: int, future: LookupOracle | None = None
) -> list[bool]:
    """Ask for pages, each used for a moment, in a cache of so many blocks: which were there."""
    blocks: dict[int, BlockId] = {}
    infos: dict[int, BlockInfo] = {}
    found = []
    for now, page in enumerate(pages):
        if future is not None:
            future.reach(now + 1)
        found.append(page in blocks)
        num_hits = 0
        if page in blocks:
            evictor.remove(blocks[page])
            num_hits = infos[page].num_hits + 1
        elif len(blocks) < capacity:
            blocks[page] = BlockId(len(blocks))
        else:
            block = evictor.evict()
            gone = next(page for page in blocks if blocks[page] == block)
            del blocks[gone]
            blocks[page] = block
        cached = infos[page].cache_order if found[-1] else now
        infos[page] = BlockInfo(4, num_hits, now, cached, hash((page,)), now)
        evictor.add(blocks[page], infos[page])
    return found


# ---------------------------------------------------------------------- as the papers say


EVENTS = st.one_of(
    st.tuples(st.just("fill"), st.sampled_from([*range(6), None])),
    st.tuples(st.sampled_from(["leave", "use", "forget"]), st.integers(0, 9)),
)


def follow(real: Evictor, model: Evictor, events: Sequence[tuple[str, Any]]) -> None:
    """Drive an evictor and its model with blocks that are in use for a while.

    Equal content may lie in several blocks, and content may be unknown.
    """
    unused = [BlockId(block) for block in range(6)]
    used: list[tuple[BlockId, BlockInfo]] = []
    idle: list[tuple[BlockId, BlockInfo]] = []
    clock = count(1)
    for what, which in events:
        now = next(clock)
        if what == "fill":
            if not unused and idle:
                block = real.evict()
                assert model.evict() == block
                idle = [entry for entry in idle if entry[0] != block]
                unused.append(block)
            if unused:
                used.append((unused.pop(), BlockInfo(4, 0, now, now, which, now)))
        elif what == "leave" and used:
            block, info = used.pop(which % len(used))
            real.add(block, info)
            model.add(block, info)
            idle.append((block, info))
        elif what in ("use", "forget") and idle:
            block, info = idle.pop(which % len(idle))
            real.remove(block)
            model.remove(block)
            if what == "use":
                key, cached = info.content_key, info.cache_order
                used.append((block, BlockInfo(4, info.num_hits + 1, now, cached, key, now)))
            else:
                unused.append(block)
        assert len(real) == len(model) == len(idle)
    while idle:
        idle.pop()
        assert real.evict() == model.evict()
    for evictor in (real, model):
        with pytest.raises(OutOfBlocks):
            evictor.evict()


@given(st.lists(EVENTS, max_size=80))
def test_arc_does_as_its_model_where_blocks_are_in_use(events: list[tuple[str, Any]]) -> None:
    follow(make("arc"), ArcModel(), events)


@pytest.mark.parametrize(("kin", "kout"), SHARES)
@given(events=st.lists(EVENTS, max_size=80))
def test_two_q_does_as_its_model_where_blocks_are_in_use(
    kin: float, kout: float, events: list[tuple[str, Any]]
) -> None:
    follow(make("two_q", kin=kin, kout=kout), TwoQModel(kin, kout), events)


# ---------------------------------------------------------------------- one page at a time


def sieve_hits(pages: Sequence[int], capacity: int) -> list[bool]:
    """SIEVE by the pseudocode of the paper: a list, the oldest page last, and a hand."""
    queue, visited, found = list[int](), set[int](), []
    hand: int | None = None
    for page in pages:
        found.append(page in queue)
        if page in queue:
            visited.add(page)
            continue
        if len(queue) == capacity:
            at = len(queue) - 1 if hand is None else queue.index(hand)
            while queue[at] in visited:
                visited.remove(queue[at])
                at = (at or len(queue)) - 1
            hand = queue[at - 1] if at else None
            del queue[at]
        queue.insert(0, page)
    return found


def s3_fifo_hits(pages: Sequence[int], capacity: int, share: float = 0.1) -> list[bool]:
    """S3-FIFO by the pseudocode of the paper: lists, the oldest page first."""
    small, main, ghosts, uses, found = list[int](), list[int](), list[int](), dict[int, int](), []

    def evict() -> None:
        while True:
            if small and (len(small) >= share * (len(small) + len(main)) or not main):
                page = small.pop(0)
                if uses[page] > 1:
                    main.append(page)
                    continue
                ghosts.append(page)
                del ghosts[: max(0, len(ghosts) - int((1 - share) * capacity))]
                return
            page = main.pop(0)
            if not uses[page]:
                return
            uses[page] -= 1
            main.append(page)

    for page in pages:
        found.append(page in small or page in main)
        if found[-1]:
            uses[page] = min(3, uses[page] + 1)
            continue
        if len(small) + len(main) == capacity:
            evict()
        (main if page in ghosts else small).append(page)
        if page in ghosts:
            ghosts.remove(page)
        uses[page] = 0
    return found


@given(references, capacities)
def test_sieve_does_as_its_paper_says(pages: list[int], capacity: int) -> None:
    assert hits(make("sieve"), pages, capacity) == sieve_hits(pages, capacity)


@given(references, capacities)
def test_s3_fifo_does_as_its_paper_says(pages: list[int], capacity: int) -> None:
    assert hits(make("s3_fifo"), pages, capacity) == s3_fifo_hits(pages, capacity)


def test_lecar_learns_which_of_its_experts_is_wrong() -> None:
    """LRU always misses in a cycle longer than the cache; some pages are hit more often."""
    cycle = [page for at in range(400) for page in (at % 9, 9)]
    learned = sum(hits(make("lecar"), cycle, 5))
    assert learned >= sum(hits(make("lru"), cycle, 5))


def test_gdsf_forgets_what_was_popular_once() -> None:
    pages = [0] * 20 + [at % 4 + 1 for at in range(400)]
    assert sum(hits(make("gdsf"), pages, 4)) > sum(hits(make("lfu"), pages, 4))


# ---------------------------------------------------------------------- the clairvoyant bound


def belady_misses(pages: Sequence[int], capacity: int) -> int:
    future = LookupOracle([hash((page,))] for page in pages)
    found = hits(make("belady", future), pages, capacity, future)
    return len(pages) - sum(found)


@given(few_references, st.integers(1, 4))
def test_belady_misses_as_seldom_as_any_choice_of_blocks(pages: list[int], capacity: int) -> None:
    assert belady_misses(pages, capacity) == fewest_misses(tuple(pages), capacity)


@given(references, capacities)
def test_no_other_misses_less_often_than_belady(pages: list[int], capacity: int) -> None:
    bound = belady_misses(pages, capacity)
    for name in sorted(set(REGISTRY.of("evictor")) - {"belady"}):
        assert len(pages) - sum(hits(make(name), pages, capacity)) >= bound, name
