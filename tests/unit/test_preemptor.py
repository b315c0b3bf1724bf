"""Blocks that are reserved for the life of a group."""

from __future__ import annotations

from paged_core.engine.preemptor import Preemptor
from paged_core.interfaces.preemption import Preemption, PreemptionMode
from paged_core.sequence import SequenceGroup
from unit.block_tables import make_cache, make_group, started


class Always(Preemption):
    """One mode, and so many tokens to reserve."""

    def __init__(self, mode: PreemptionMode, num_tokens: int | None = None) -> None:
        self._mode, self._num_tokens = mode, num_tokens

    def mode(self, group: SequenceGroup, /) -> PreemptionMode:
        return self._mode

    def tokens_to_reserve(self, group: SequenceGroup, /) -> int | None:
        return self._num_tokens


RECOMPUTE, SWAP = Always(PreemptionMode.RECOMPUTE), Always(PreemptionMode.SWAP)


class TestReservedBlocks:
    def test_nothing_is_reserved_by_default(self) -> None:
        cache = make_cache()
        preemptor = Preemptor(cache, RECOMPUTE)
        group, other = make_group(9), started(cache, 12)
        assert preemptor.lifetime(group) == preemptor.outstanding([other]) == 0
        assert preemptor.blocks_to_admit(group, [other]) == 3
        assert preemptor.refuse(group, 0) is None

    def test_to_admit_a_group_takes_its_lifetime_and_what_others_have_yet_to_get(self) -> None:
        cache = make_cache()
        preemptor = Preemptor(cache, Always(PreemptionMode.RECOMPUTE, 16))
        group, other = make_group(9), started(cache, 12)
        assert preemptor.lifetime(group) == 4
        assert preemptor.outstanding([other]) == 1
        assert preemptor.blocks_to_admit(group, [other]) == 5

    def test_full_blocks_of_the_prompt_are_shared(self) -> None:
        preemptor = Preemptor(make_cache(), Always(PreemptionMode.RECOMPUTE, 16))
        group = make_group(9, n=3)
        assert preemptor.lifetime(group) == 2 + 3 * 2
        assert preemptor.refuse(group, 8) is None
        assert "8 blocks, 7 can be given" in (preemptor.refuse(group, 7) or "")
