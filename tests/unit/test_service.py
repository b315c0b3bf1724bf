"""Calls of ``served`` and ``left`` of an order, and the time since which a request waits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import pytest

from paged_core.interfaces.queue_order import QueueOrder
from paged_core.sequence import SequenceGroup
from paged_testing.engines import build_memory_engine, serve
from paged_testing.workloads import Workload, simple_request
from unit.faulty_settings import registry_of


class Timely(QueueOrder):
    calls: ClassVar[list[tuple[Any, ...]]] = []

    def __init__(self, options: Any, parts: Any, /) -> None:
        self.calls.clear()

    def key(self, group: SequenceGroup, now: float, /) -> Any:
        return 0

    def served(self, group: SequenceGroup, num_tokens: int, now: float, /) -> None:
        self.calls.append((group.id, num_tokens, now))

    def left(self, group: SequenceGroup, /) -> None:
        self.calls.append((group.id, "left"))


def test_an_order_is_told_what_was_served_and_when() -> None:
    engine = build_memory_engine(registry_of("queue_order", Timely), queue_order="faulty")
    serve(engine, Workload(((0, simple_request("A", 5, 3)),)))
    assert Timely.calls == [("A", 5, 0.0), ("A", 1, 1.0), ("A", 1, 2.0), ("A", "left")]


class TestWaitingSince:
    def test_is_the_arrival_at_first(self) -> None:
        group = build_memory_engine().add(replace(simple_request("A", 5, 3), arrival=3.0))
        assert group.waiting_since == 3.0

    @pytest.mark.parametrize("preemption", ["recompute", "swap"])
    def test_is_when_it_was_last_preempted(self, preemption: str) -> None:
        engine = build_memory_engine(num_blocks=6, num_host_blocks=6, preemption=preemption)
        groups = [engine.add(simple_request(name, 7, 12)) for name in "AB"]
        seen = [group.waiting_since for group in groups]
        changes = 0
        while engine.has_unfinished:
            ran = [group.status.name == "RUNNING" for group in groups]
            engine.step()
            for index, group in enumerate(groups):
                if ran[index] and group.status.name in ("WAITING", "SWAPPED"):
                    assert group.waiting_since == engine.num_steps - 1
                    changes += 1
                elif group.waiting_since != seen[index]:
                    # out and in again within the step
                    assert group.waiting_since == engine.num_steps - 1
                seen[index] = group.waiting_since
        assert changes
