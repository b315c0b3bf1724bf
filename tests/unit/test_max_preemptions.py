"""Victims that limit how often the same group is preempted."""

from __future__ import annotations

import pytest

from paged_core.cache.kv_cache import KVCache
from paged_core.engine.contexts import VictimContext
from paged_core.interfaces.victim import Victim
from paged_core.plugins.registry import Registry
from paged_core.sequence import SequenceGroup, Status
from paged_policies.victims.preemption_limit import below_limit
from paged_testing.policy_subjects import empty_cache, waiting_groups
from paged_testing.workloads import simple_request

REGISTRY = Registry.discover()


def running(cache: KVCache, *num_preemptions: int) -> list[SequenceGroup]:
    """Groups of falling size and rising importance that were preempted so often.

    Those that come first have computed less."""
    coming = [
        simple_request(name, 40 - 10 * place, 4, priority=9 - place)
        for place, (name, _) in enumerate(zip("ABCD", num_preemptions, strict=False))
    ]
    groups = waiting_groups(coming)
    for group, times in zip(groups, num_preemptions, strict=True):
        cache.admit(group.live[0], len(group.live[0].tokens))
        group.status, group.num_preemptions = Status.RUNNING, times
        group.live[0].num_computed = group.number
    return groups


def make(name: str, cache: KVCache, **options: int) -> Victim:
    component = REGISTRY.get("victim", name)
    made = component.load()(component.settings(**options), VictimContext(kv_cache=cache))
    assert isinstance(made, Victim)
    return made


@pytest.mark.parametrize("name", ["fewest_computed", "lowest_priority", "most_blocks"])
class TestMaxPreemptions:
    def test_without_it_the_same_group_is_chosen_again(self, name: str) -> None:
        cache = empty_cache(REGISTRY)
        groups = running(cache, 9, 0, 0)
        assert make(name, cache).choose(groups, 0.0) is groups[0]

    def test_with_it_the_next_one_is(self, name: str) -> None:
        cache = empty_cache(REGISTRY)
        victim = make(name, cache, max_preemptions=2)
        groups = running(cache, 1, 2, 0)
        assert victim.choose(groups, 0.0) is groups[0]
        groups[0].num_preemptions = 2
        assert victim.choose(groups, 0.0) is groups[2]

    def test_where_all_have_reached_it_the_last_one_is_chosen(self, name: str) -> None:
        cache = empty_cache(REGISTRY)
        groups = running(cache, 2, 3, 2)
        assert make(name, cache, max_preemptions=2).choose(groups, 0.0) is groups[-1]


def test_there_is_no_limit_by_default() -> None:
    groups = running(empty_cache(REGISTRY), 5, 6)
    assert list(below_limit(groups, None)) == groups
