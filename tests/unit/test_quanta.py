"""Running requests whose quantum is over make room for the one that comes next."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from paged_core.engine.engine import Engine
from paged_core.interfaces.queue_order import QueueOrder
from paged_core.plugins.component import Component, ComponentSettings
from paged_core.request import Request
from paged_core.sequence import SequenceGroup, Status
from paged_testing.engines import build_memory_engine, registry_with
from paged_testing.served import check_nothing_leaked, check_said
from paged_testing.workloads import simple_request
from unit.engines import finish


class OverFromFiveSettings(ComponentSettings):
    """Options of :class:`OverFromFive`."""

    name: Literal["over_from_five"] = "over_from_five"


class OverFromFive(QueueOrder):
    """By priority; from 5 on a running request may be preempted."""

    def __init__(self, options: Any, parts: Any, /) -> None:
        pass

    def key(self, group: SequenceGroup, now: float, /) -> Any:
        return (group.request.priority, group.number)

    def quantum_over(self, group: SequenceGroup, now: float, /) -> bool:
        return group.request.priority >= 5


REGISTRY = registry_with(
    Component(
        "queue_order", OverFromFiveSettings, f"{__name__}:OverFromFive", summary="over from 5 on"
    ),
)
HONOUR = ["token_budget", "prefill_or_decode"]


def engine_of(
    scheduler: str, max_num_seqs: int = 1, options: dict[str, Any] | None = None, **values: Any
) -> Engine:
    table = {"name": scheduler, "max_num_seqs": max_num_seqs, **(options or {})}
    return build_memory_engine(
        REGISTRY, **{"scheduler": table, "queue_order": "over_from_five", **values}
    )


def running(engine: Engine, *requests: Request) -> list[SequenceGroup]:
    """Add requests, and step until they decode."""
    groups = [engine.add(each) for each in requests]
    for _ in range(4):
        engine.step()
    assert all(group.status is Status.RUNNING for group in groups)
    return groups


def check_ended(engine: Engine, *groups: SequenceGroup) -> None:
    finish(engine)
    for group in groups:
        check_said(engine, group)
        assert len(group.sequences[0].output) == group.request.sampling.max_tokens
    check_nothing_leaked(engine)


def finished_at(*groups: SequenceGroup) -> list[float]:
    assert all(group.finished_at is not None for group in groups)
    return [group.finished_at or 0.0 for group in groups]


def of_priority(priority: int, length: int = 5, max_tokens: int = 20, n: int = 1) -> Request:
    return simple_request(f"p{priority}", length, max_tokens, n=n, priority=priority)


WHICH: dict[str, tuple[dict[str, Any], list[Request], Request, list[int]]] = {
    "one whose quantum is over for one that comes before it": (
        {},
        [of_priority(5)],
        simple_request("better", 5, 4),
        [1],
    ),
    "not while its quantum lasts": ({}, [of_priority(4)], simple_request("better", 5, 4), [0]),
    "for blocks too": (
        {"max_num_seqs": 8, "num_blocks": 8},
        [of_priority(5, 16, 12)],
        simple_request("better", 16, 4),
        [1],
    ),
    "not if it would not make enough room": (
        {"max_num_seqs": 3},
        [of_priority(5), of_priority(4, n=2)],
        simple_request("large", 5, 4, n=2),
        [0, 0],
    ),
    "the last in the order first and no more than have to": (
        {"max_num_seqs": 3},
        [of_priority(7), of_priority(5), of_priority(6)],
        simple_request("better", 5, 4),
        [1, 0, 0],
    ),
    "a group as a whole": (
        {"max_num_seqs": 3},
        [of_priority(5, n=3)],
        simple_request("better", 5, 4),
        [1],
    ),
    "nothing that was admitted to run to its end": (
        {"preemption": "never"},
        [of_priority(5)],
        simple_request("better", 5, 4),
        [0],
    ),
}
"""Settings, requests that run, one that comes then, and how often the first are preempted."""


@pytest.mark.parametrize("scheduler", HONOUR)
class TestWhichGroupIsPreempted:
    @pytest.mark.parametrize(("values", "here", "coming", "expected"), WHICH.values(), ids=WHICH)
    def test_is(
        self,
        scheduler: str,
        values: dict[str, Any],
        here: list[Request],
        coming: Request,
        expected: list[int],
    ) -> None:
        engine = engine_of(scheduler, **values)
        groups = running(engine, *here)
        other = engine.add(coming)
        check_ended(engine, *groups, other)
        assert [group.num_preemptions for group in (*groups, other)] == [*expected, 0]
        if len(here) == 1:
            first, last = finished_at(other, *groups)
            assert (first < last) == bool(expected[0])

    @pytest.mark.parametrize("num_host_blocks", [30, 2])
    def test_a_swapped_out_group_is_resumed_by_its_place_in_the_order(
        self, scheduler: str, num_host_blocks: int
    ) -> None:
        """If the host is full it is recomputed, and waits in the queue."""
        engine = engine_of(scheduler, preemption="swap", num_host_blocks=num_host_blocks)
        (worse,) = running(engine, simple_request("worse", 9, 20, priority=5))
        better = [engine.add(simple_request(name, 5, 4)) for name in ("one", "two")]
        engine.step()
        gone = Status.SWAPPED if num_host_blocks == 30 else Status.WAITING
        assert worse.status is gone
        assert worse.waiting_since == engine.num_steps - 1
        check_ended(engine, worse, *better)
        one, two, last = finished_at(*better, worse)
        assert one < two < last
        assert worse.num_preemptions == 1

    def test_not_one_that_has_grown_past_what_a_step_takes(self, scheduler: str) -> None:
        """Groups that could not be started again would end early."""
        options: dict[str, Any] = {"max_num_batched_tokens": 16}
        if scheduler == "token_budget":
            options["chunked_prefill"] = False
        engine = engine_of(scheduler, options=options, block_allocator="uncached")
        worse = engine.add(simple_request("worse", 12, 12, priority=5))
        for _ in range(6):
            engine.step()
        better = engine.add(simple_request("better", 5, 4))
        check_ended(engine, worse, better)
        assert worse.num_preemptions == 0

    def test_no_prompt_that_is_being_computed(self, scheduler: str) -> None:
        """Or two could preempt each other for ever before either has generated a token."""
        if scheduler != "token_budget":
            pytest.skip("it computes prompts in one piece")
        engine = engine_of(scheduler, options={"max_num_batched_tokens": 4})
        worse = engine.add(simple_request("worse", 16, 4, priority=5))
        engine.step()
        better = engine.add(simple_request("better", 5, 4))
        while worse.first_token_at is None:
            engine.step()
            assert worse.status is Status.RUNNING
        check_ended(engine, worse, better)
        assert worse.num_preemptions == 1
