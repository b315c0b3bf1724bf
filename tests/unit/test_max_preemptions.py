"""Victims that limit how often the same group is preempted."""

from __future__ import annotations

import pytest

from paged_core.cache.kv_cache import KVCache
from paged_core.engine.contexts import VictimContext
from paged_core.interfaces.victim import Victim
from paged_core.sequence import SequenceGroup, Status
from paged_testing.policy_subjects import empty_cache, waiting_groups
from paged_testing.workloads import simple_request
from unit.engines import REGISTRY


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


@pytest.mark.parametrize("name", ["fewest_computed", "lowest_priority", "most_blocks"])
@pytest.mark.parametrize(
    ("num_preemptions", "limit", "chosen"),
    [
        ((9, 0, 0), None, 0),
        ((1, 2, 0), 2, 0),
        ((2, 2, 0), 2, 2),
        ((2, 3, 2), 2, 2),  # all have reached it: the last one
    ],
)
def test_the_first_that_is_below_the_limit_is_chosen(
    name: str, num_preemptions: tuple[int, ...], limit: int | None, chosen: int
) -> None:
    cache = empty_cache(REGISTRY)
    groups = running(cache, *num_preemptions)
    component = REGISTRY.get("victim", name)
    options = component.settings(max_preemptions=limit)
    victim: Victim = component.load()(options, VictimContext(kv_cache=cache))
    assert victim.choose(groups, 0.0) is groups[chosen]
