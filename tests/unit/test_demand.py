"""Evictors are told which content waiting requests want, and strand no block if they promise it."""

from __future__ import annotations

from typing import Any

import pytest

from paged_core.errors import PluginError
from paged_core.sequence import Status
from paged_policies.evictors.queue_informed_lru import QueueInformedLruEvictor
from paged_testing.engines import build_memory_engine
from paged_testing.workloads import SITUATIONS, Situation, simple_request
from unit.engines import REGISTRY

LEAVES = {"name": "fifo", "leaves_first": True}


def engine_of(situation: Situation, evictor: Any) -> Any:
    return build_memory_engine(REGISTRY, **situation.values({"evictor": evictor}))


@pytest.mark.parametrize("name", SITUATIONS)
def test_wanted_is_what_those_that_wait_are_going_to_look_up(name: str) -> None:
    engine = engine_of(SITUATIONS[name], "queue_informed_lru")
    told = engine._requests.demand._evictor.inner._wanted
    arrivals = sorted(SITUATIONS[name].workload.requests, key=lambda pair: pair[0])
    aborts = [name for _, name in SITUATIONS[name].workload.aborts]
    while arrivals or engine.has_unfinished:
        while arrivals and arrivals[0][0] <= engine.num_steps:
            engine.add(arrivals.pop(0)[1])
        engine.step()
        if engine.num_steps > 3 and aborts:
            engine.abort(aborts.pop())
        waiting = [each for each in engine.groups if each.status is Status.WAITING]
        keys: set[int] = set()
        for each in (sequence for group in waiting for sequence in group.live):
            keys |= set(map(hash, each.table.keys[: (each.num_tokens - 1) // 2]))
        assert told == (keys if engine.kv_cache.caches_prefixes else set())
        lengths = {each.id: len(each.request.prompt) for each in waiting}
        demand = engine._requests.demand
        assert (demand.waiting, demand.num_tokens) == (lengths, sum(lengths.values()))
    assert not told


def test_blocks_that_a_waiting_request_wants_are_evicted_last() -> None:
    hits = {}
    for evictor in ("lru", "queue_informed_lru"):
        one = {"name": "token_budget", "max_num_seqs": 1}
        engine = build_memory_engine(REGISTRY, evictor=evictor, num_blocks=16, scheduler=one)
        for first in (0, 100):
            engine.add(simple_request(f"of {first}", tuple(range(first, first + 20)), 1))
            engine.step()
        engine.add(simple_request("floods", 36, 1))
        last = engine.add(simple_request("waits", tuple(range(20)), 1))
        while engine.has_unfinished:
            engine.step()
        hits[evictor] = last.num_cached
    assert hits["queue_informed_lru"] > hits["lru"]


def test_an_evictor_that_raises_when_told_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Any, key: int, is_wanted: bool) -> None:
        raise ValueError("no such content")

    monkeypatch.setattr(QueueInformedLruEvictor, "wanted", fail)
    engine = build_memory_engine(REGISTRY, evictor="queue_informed_lru")
    with pytest.raises(PluginError, match="evictor 'queue_informed_lru' raised ValueError"):
        engine.add(simple_request("r", 9, 2))
    assert not engine.has_unfinished
    engine.add(simple_request("short", 3, 2))
    engine.step()


@pytest.mark.parametrize("evictor", [LEAVES, "leaf_first", "gdsf", "lru"], ids=str)
@pytest.mark.parametrize("name", ["equal prompts are merged", "more requests than may run at once"])
def test_what_is_cached_can_be_found(name: str, evictor: Any) -> None:
    """Each cached block depends on one that is cached, too."""
    engine = engine_of(SITUATIONS[name], evictor)
    for round_ in range(3):
        for _, request in SITUATIONS[name].workload.requests:
            prompt = request.prompt if round_ else (*request.prompt, *range(500, 506))
            engine.add(simple_request(f"{request.id} {round_}", tuple(prompt), 5))
        while engine.has_unfinished:
            engine.step()
            content = engine.kv_cache._prefix_cache.content.values()
            assert all(key.parent is None or key.parent in content for key in content)
