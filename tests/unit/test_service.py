"""Calls of ``served`` and ``left`` of an order, with and without the time of the step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from paged_core.interfaces.queue_order import QueueOrder
from paged_core.sequence import SequenceGroup
from paged_testing.engines import build_memory_engine, serve
from paged_testing.workloads import Workload, simple_request
from unit.faulty_settings import registry_of


class _Order(QueueOrder):
    def __init__(self, options: Any = None, parts: Any = None, /) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def key(self, group: SequenceGroup, now: float, /) -> Any:
        return 0


class Silent(_Order):
    """Has neither ``served`` nor ``left``."""


class Timely(_Order):
    def served(self, group: SequenceGroup, num_tokens: int, now: float, /) -> None:
        self.calls.append((group.id, num_tokens, now))

    def left(self, group: SequenceGroup, /) -> None:
        self.calls.append((group.id, "left"))


class Optional(Timely):
    def served(self, group: SequenceGroup, num_tokens: int, now: float = 0.0) -> None:
        self.calls.append((group.id, num_tokens, now))


class AnyNumber(Timely):
    def served(self, *arguments: Any) -> None:
        group, *rest = arguments
        self.calls.append((group.id, *rest))


def serve_one(kind: type[_Order]) -> tuple[list[tuple[Any, ...]], list[dict[str, Any]]]:
    """Serve a request under an order; return the calls of it and the warnings logged."""
    with capture_logs() as logs:
        engine = build_memory_engine(registry_of("queue_order", kind), queue_order="faulty")
        serve(engine, Workload(((0, simple_request("A", 5, 3)),)))
    order = engine.scheduler._order  # type: ignore[attr-defined]
    warnings = [dict(log) for log in logs if log["event"] == "interface_deprecated"]
    return order.calls, warnings


@pytest.mark.parametrize("kind", [Timely, Optional, AnyNumber])
def test_is_called_with_the_time_of_the_step(kind: type[_Order]) -> None:
    calls, warnings = serve_one(kind)
    assert calls == [("A", 5, 0.0), ("A", 1, 1.0), ("A", 1, 2.0), ("A", "left")]
    assert warnings == []


def test_one_that_does_not_care_is_not_told() -> None:
    assert serve_one(Silent) == ([], [])


class TestWaitingSince:
    def test_is_the_arrival_at_first(self) -> None:
        group = build_memory_engine().add(replace(simple_request("A", 5, 3), arrival=3.0))
        assert group.waiting_since == 3.0

    @pytest.mark.parametrize("preemption", ["recompute", "swap"])
    @pytest.mark.parametrize("scheduler", ["token_budget", "prefill_or_decode"])
    def test_is_when_it_was_last_preempted(self, scheduler: str, preemption: str) -> None:
        engine = build_memory_engine(
            num_blocks=6, num_host_blocks=6, preemption=preemption, scheduler=scheduler
        )
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
