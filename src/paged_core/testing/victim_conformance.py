"""What a victim component must do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from hypothesis import strategies as st

from paged_core.interfaces.victim import Victim, VictimParts
from paged_core.kv_cache import KVCache
from paged_core.request import Request
from paged_core.sequence import SequenceGroup, Status
from paged_core.testing.component_conformance import ServesEveryWorkload
from paged_core.testing.policy_subjects import (
    empty_cache,
    request_lists,
    running_groups,
    shares,
    waiting_groups,
)
from paged_core.testing.untouched import untouched


class VictimConformance(ServesEveryWorkload):
    """Subclass it for a victim component. State the choice by overriding :meth:`expected`::

    class TestOldest(VictimConformance):
        component = "oldest"

        def expected(self, candidates, now):
            return candidates[0]
    """

    slot: ClassVar[str] = "victim"

    def expected(self, candidates: Sequence[SequenceGroup], now: float, /) -> SequenceGroup | None:
        """Return the group that must be preempted; ``None``: any answer will do.

        Args:
            candidates: running groups that hold blocks, worst last; never empty.
            now: seconds.
        """
        return None

    def make(self, kv_cache: KVCache | None = None) -> Victim:
        """A fresh component."""
        cache = kv_cache or empty_cache(self.registry)
        made = self.build(VictimParts(kv_cache=cache))
        assert isinstance(made, Victim)
        return made

    def test_chooses_the_only_candidate(self) -> None:
        def chooses(requests: list[Request]) -> None:
            component = self.make()
            for group in waiting_groups(requests):
                group.status = Status.RUNNING
                assert component.choose([group], 0.0) is group, "it chose another group"

        self.check(chooses, request_lists(), share=0.5)

    def test_chooses_one_of_the_candidates_and_changes_nothing(self) -> None:
        """One component is called repeatedly, each time without the groups chosen before."""

        def chooses(requests: list[Request], computed: list[int], now: float) -> None:
            cache = empty_cache(self.registry)
            candidates = running_groups(cache, requests, computed)
            component, twin = self.make(cache), self.make(cache)
            while candidates:
                before, free = list(candidates), cache.num_free
                with untouched(before):
                    victim = component.choose(candidates, now)
                assert candidates == before, "it changed the list of candidates"
                assert any(victim is group for group in candidates), "it chose another group"
                assert cache.num_free == free, "it freed blocks; that is for the scheduler"
                wanted = self.expected(before, now)
                assert wanted is None or victim is wanted, f"it chose {victim} instead of {wanted}"
                assert twin.choose(list(before), now) is victim, (
                    "a second component chooses another group: runs cannot be repeated"
                )
                candidates = [group for group in before if group is not victim]

        self.check(chooses, request_lists(), shares(), st.floats(0, 100))
