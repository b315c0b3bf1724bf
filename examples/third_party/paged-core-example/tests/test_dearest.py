"""The order in which it gives blocks up."""

from paged_core.engine.contexts import EvictorContext
from paged_core.ids import BlockId
from paged_core.interfaces.evictor import BlockInfo

from paged_core_example.dearest import DearestEvictor, DearestSettings


def evictor(**options: float) -> DearestEvictor:
    settings = DearestSettings(**{"attention_break_even": 64, **options})
    return DearestEvictor(settings, EvictorContext(num_blocks=99, block_size=16, seed=0))


def leave(evictor: DearestEvictor, departure: int, *blocks: tuple[int, int, int]) -> None:
    """One request leaves blocks: number, length of the prefix, hits; the last one first."""
    for block, num_tokens, num_hits in blocks:
        evictor.add(BlockId(block), BlockInfo(num_tokens, num_hits, departure))


def order(evictor: DearestEvictor) -> list[int]:
    return [evictor.evict() for _ in range(len(evictor))]


def test_what_is_cheap_to_compute_goes_first() -> None:
    mine = evictor()
    leave(mine, 1, (1, 640, 0))
    leave(mine, 2, (2, 16, 0))
    assert order(mine) == [2, 1]


def test_hits_count_as_often_as_they_are_weighted() -> None:
    for weight, wanted in ((1.0, [1, 2]), (0.0, [2, 1])):
        mine = evictor(hit_weight=weight)
        leave(mine, 1, (1, 32, 0))
        leave(mine, 2, (2, 16, 5))
        assert order(mine) == wanted


def test_a_prefix_is_given_up_from_its_end() -> None:
    mine = evictor()
    leave(mine, 1, (3, 48, 0), (2, 32, 0), (1, 16, 0))
    assert order(mine) == [3, 2, 1]


def test_what_comes_first_in_a_popular_prefix_is_no_cheaper_than_what_follows() -> None:
    mine = evictor()
    leave(mine, 1, (3, 48, 0), (2, 32, 9), (1, 16, 0))
    leave(mine, 2, (4, 16, 1))
    assert order(mine) == [3, 4, 2, 1]


def test_old_fame_fades() -> None:
    mine = evictor()
    leave(mine, 0, (0, 16, 8))
    for departure in range(1, 40):
        leave(mine, departure, (departure, 16, 0))
        if mine.evict() == 0:
            break
    else:
        raise AssertionError("it is kept for ever")
    assert departure > 5


def test_a_block_that_was_used_again_is_weighed_anew() -> None:
    mine = evictor()
    for again in range(200):
        leave(mine, 2 * again, (1, 16, again))
        mine.remove(BlockId(1))
    leave(mine, 1000, (1, 16, 3))
    leave(mine, 1001, (2, 16, 0))
    assert order(mine) == [2, 1]
