"""Written cases for victim components: what wrong ones are known to do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import pytest

from paged_core.interfaces.victim import Victim, VictimParts
from paged_core.kv_cache import KVCache
from paged_core.request import Request
from paged_core.sequence import SequenceGroup, Status
from paged_testing.component_conformance import ComponentConformance
from paged_testing.policy_subjects import (
    WRITTEN_SHARES,
    empty_cache,
    running_groups,
    waiting_groups,
    written_requests,
)
from paged_testing.untouched import untouched


class VictimCases(ComponentConformance):
    """The cases of :class:`~paged_testing.VictimConformance`."""

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

    # ------------------------------------------------------------------ written cases

    def test_chooses_the_only_written_candidate(self) -> None:
        self.check_only_candidate(written_requests())

    @pytest.mark.parametrize("now", [0.0, 50.0])
    def test_chooses_among_written_candidates(self, now: float) -> None:
        self.check_choices(written_requests(), WRITTEN_SHARES, now)
        self.check_choices(written_requests()[::-1], WRITTEN_SHARES[::-1], now)

    def test_chooses_among_equal_candidates(self) -> None:
        self.check_choices([written_requests()[0]] * 6, (4,) * 6, 1.0)

    def test_chooses_one_though_all_were_preempted_often(self) -> None:
        cache = empty_cache(self.registry)
        candidates = running_groups(cache, written_requests(), WRITTEN_SHARES)
        component = self.make(cache)
        for number, group in enumerate(candidates):
            group.num_preemptions = 100 + number
        chosen = component.choose(candidates, 5.0)
        assert any(chosen is group for group in candidates), f"it chose {chosen}"

    def test_takes_any_sequence_of_candidates(self) -> None:
        cache = empty_cache(self.registry)
        candidates = running_groups(cache, written_requests(), WRITTEN_SHARES)
        chosen = self.make(cache).choose(tuple(candidates), 5.0)
        of_list = self.make(cache).choose(candidates, 5.0)
        assert chosen is of_list, f"of a tuple it chose {chosen}, of the same list {of_list}"

    def test_what_it_was_shown_before_does_not_matter(self) -> None:
        """It is asked about others, and then about groups that have arrived since."""
        cache = empty_cache(self.registry)
        candidates = running_groups(cache, written_requests(), WRITTEN_SHARES)
        component = self.make(cache)
        for shown in (candidates[:3], candidates[3:], candidates[2:5], candidates[::-1]):
            chosen = component.choose(list(shown), 1.0)
            assert any(chosen is group for group in shown), f"it chose {chosen}, not of {shown}"

    # ------------------------------------------------------------------ what is checked

    def check_only_candidate(self, requests: Sequence[Request]) -> None:
        """Check that the only candidate is chosen."""
        component = self.make()
        for group in waiting_groups(requests):
            group.status = Status.RUNNING
            chosen = component.choose([group], 0.0)
            assert chosen is group, f"it chose another group, {chosen}, and not {group}"

    def check_choices(
        self, requests: Sequence[Request], computed: Sequence[int], now: float
    ) -> None:
        """Check the choices of one component, each time without the groups chosen before."""
        cache = empty_cache(self.registry)
        candidates = running_groups(cache, requests, computed)
        component, twin = self.make(cache), self.make(cache)
        while candidates:
            before, free = list(candidates), cache.num_free
            with untouched(before):
                victim = component.choose(candidates, now)
            assert candidates == before, "it changed the list of candidates"
            assert any(victim is group for group in candidates), f"it chose another group: {victim}"
            assert cache.num_free == free, "it freed blocks; that is for the scheduler"
            wanted = self.expected(before, now)
            assert wanted is None or victim is wanted, f"it chose {victim} instead of {wanted}"
            again = twin.choose(list(before), now)
            assert again is victim, (
                f"it chose {victim}, a second component {again}: runs cannot be repeated"
            )
            candidates = [group for group in before if group is not victim]
