"""Evictors that look at content: as their papers say, and none better than the clairvoyant one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from paged_core.engine.contexts import EvictorContext
from paged_core.ids import BlockId
from paged_core.interfaces.evictor import BlockInfo, Evictor
from paged_core.requests.lookup_oracle import LookupOracle
from properties.evictor_models import (
    arc_hits,
    fewest_misses,
    two_q_hits,
)
from unit.engines import REGISTRY

SHARES = [(0.25, 0.5), (0.5, 1.0), (0.7, 0.0), (0.1, 0.3)]
"""``kin`` and ``kout``."""

SOME = hypothesis_settings(max_examples=30, deadline=None)
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


@SOME
@given(references, capacities)
def test_arc_hits_what_the_paper_says(pages: list[int], capacity: int) -> None:
    assert hits(make("arc"), pages, capacity) == arc_hits(pages, capacity)


@pytest.mark.parametrize(("kin", "kout"), SHARES)
@SOME
@given(pages=references, capacity=capacities)
def test_two_q_hits_what_the_paper_says(
    kin: float, kout: float, pages: list[int], capacity: int
) -> None:
    found = hits(make("two_q", kin=kin, kout=kout), pages, capacity)
    assert found == two_q_hits(pages, capacity, kin, kout)


def test_a_flood_leaves_what_came_back_to_arc_and_two_q_alone() -> None:
    """Two pages that are asked for again and again, among pages that come once."""
    once = iter(range(100, 1000))
    pages = [page for _ in range(40) for page in (1, 2, next(once), next(once), next(once))]
    pages = [1, 2, *pages]
    for name in ("arc", "two_q"):
        assert sum(hits(make(name), pages, 4)) >= 2 * 30
    assert sum(hits(make("lru"), pages, 4)) == 2


# ---------------------------------------------------------------------- the clairvoyant bound


def belady_misses(pages: Sequence[int], capacity: int) -> int:
    future = LookupOracle([hash((page,))] for page in pages)
    found = hits(make("belady", future), pages, capacity, future)
    return len(pages) - sum(found)


@SOME
@given(few_references, st.integers(1, 4))
def test_belady_misses_as_seldom_as_any_choice_of_blocks(pages: list[int], capacity: int) -> None:
    assert belady_misses(pages, capacity) == fewest_misses(tuple(pages), capacity)


@SOME
@given(references, capacities)
def test_no_other_misses_less_often_than_belady(pages: list[int], capacity: int) -> None:
    bound = belady_misses(pages, capacity)
    for name in sorted(set(REGISTRY.of("evictor")) - {"belady"}):
        assert len(pages) - sum(hits(make(name), pages, capacity)) >= bound, name
