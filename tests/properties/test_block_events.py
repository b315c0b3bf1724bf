"""Replaying the events of ``block_events`` gives what the prefix cache holds, whatever happened.

Readers ask after every step or every few; one that missed events that are no longer kept gets all
that is held. What is held is read from the allocator, and its content keys are computed anew.
"""

from __future__ import annotations

import time
from contextlib import suppress
from itertools import count
from typing import Any

import pytest
from hypothesis import strategies as st

from paged_core.engine.engine import Engine
from paged_core.engine.outcome import StepOutcome
from paged_core.ids import BlockKey, content_digests
from paged_plugins.routing.block_events import BlockEvents, BlockEventsSettings
from paged_testing.doubles import BackgroundExecutor, FailingExecutor
from paged_testing.engines import build_memory_engine, engine_settings
from paged_testing.workloads import Workload, workloads
from properties.fault_injection import Injector
from properties.profile import Length, lengths
from properties.test_faults import ERRORS, FAULTS, serve, sites
from unit.engines import REGISTRY, request


def held(engine: Engine) -> set[int]:
    """Content keys of all that the allocator finds."""
    cache = engine.kv_cache
    found = getattr(cache._allocator, "_by_key", {})
    assert set(found) == set(cache._prefix_cache.content.values())
    return {digest_of(key, engine.kv_cache.block_size) for key in found}


def digest_of(key: BlockKey, block_size: int) -> int:
    """The content key of a block, from the tokens up to its end."""
    chain: list[BlockKey] = []
    above: BlockKey | None = key
    while above is not None:
        chain.append(above)
        above = above.parent
    tokens = [token for each in reversed(chain) for token in each.tokens]
    return content_digests(tokens, block_size, key.extra)[-1]


class Reader:
    """Replays events; asks in every ``interval``-th step."""

    def __init__(self, interval: int) -> None:
        self.keys: set[int] = set()
        self._since = 0
        self._interval = interval

    def read(self, events: BlockEvents, engine: Engine, step: int) -> None:
        """Replay what is new, and compare."""
        if step % self._interval:
            return
        report = events.report(self._since)
        assert set(report) == {"next", "events"}
        for kind, keys in report["events"]:
            assert len(keys) == len(set(keys))
            if kind == "stored":
                assert not self.keys & set(keys), "stored twice"
                self.keys |= set(keys)
            elif kind == "removed":
                assert self.keys >= set(keys), "removed without being there"
                self.keys -= set(keys)
            else:
                assert (kind, keys) == ("cleared", [])
                self.keys.clear()
        self._since = report["next"]
        assert self.keys == held(engine)


def check(
    values: dict[str, Any],
    workload: Workload,
    injector: Injector,
    *,
    num_kept: int,
    ahead: bool = False,
) -> None:
    """Serve a workload twice through whatever raises, with a reset between; readers compare."""
    events = BlockEvents(BlockEventsSettings(num_kept=num_kept))
    readers = [Reader(interval) for interval in (1, 3, 7)]
    with injector.installed():
        engine = build_memory_engine(REGISTRY, **values, observers=[events], async_scheduling=ahead)
        if ahead:
            BackgroundExecutor.install(engine)
        step, numbers = engine.step, count()

        def watched() -> StepOutcome:
            try:
                return step()
            finally:
                number = next(numbers)
                assert events in engine.observers, "it raised, and was dropped"
                for reader in readers:
                    reader.read(events, engine, number)

        engine.step = watched  # type: ignore[method-assign]
        for turn in "abc":
            serve(engine, workload, turn)
            if turn == "b":
                assert engine.reset_prefix_cache()
                assert not held(engine)
        for reader in readers:
            reader.read(events, engine, 0)
        with suppress(*ERRORS):
            engine.close()


@lengths(10, 5_000)
def test_replayed_events_are_what_is_held(length: Length) -> None:
    """Under any policies, with evictions, steps that fail, and policies that are made anew."""

    def holds(
        values: dict[str, Any], workload: Workload, fault: Any, ahead: bool, num_kept: int
    ) -> None:
        place, after, error = fault
        calls = [each for each in sites(values, workload, ahead=ahead) if each[0][0] != "observers"]
        site, number = calls[int(place * len(calls))]
        injector = Injector(site, number, after=after, error=error)
        check(values, workload, injector, num_kept=num_kept, ahead=ahead)

    kept = st.sampled_from([0, 1, 5, 1000])
    served = workloads(9, 3) if length.is_long else workloads()
    length.check(holds, engine_settings(REGISTRY), served, FAULTS, st.booleans(), kept)


@pytest.mark.parametrize("failures", [{"before": {1}}, {"after": {1}}])
def test_blocks_of_a_failed_step_are_removed_again(failures: dict[str, set[int]]) -> None:
    events, reader = BlockEvents(BlockEventsSettings()), Reader(1)
    engine = build_memory_engine(REGISTRY, observers=[events])
    FailingExecutor.install(engine, **failures)
    engine.add(request("A", range(9)))
    engine.step()
    reader.read(events, engine, 0)
    assert len(reader.keys) == 2
    engine.add(request("B", range(100, 109)))
    engine.step()
    reader.read(events, engine, 0)
    assert len(reader.keys) == 2, "those that the second step was to fill are not held"


def test_numbers_of_another_engine_are_never_taken_for_its_own() -> None:
    """A reader that was left from an engine that ended is told all that is held."""
    former, now = (BlockEvents(BlockEventsSettings()) for _ in range(2))
    for events, length in ((former, 9), (now, 33)):
        engine = build_memory_engine(REGISTRY, observers=[events])
        engine.add(request("A", range(length)))
        engine.step()
    whole = [("cleared", []), ("stored", content_digests(range(33), 4))]
    for since in (0, former.report(0)["next"], time.time_ns() + 10**12):
        assert now.report(since)["events"] == whole
    assert now.report(now.report(0)["next"])["events"] == []
