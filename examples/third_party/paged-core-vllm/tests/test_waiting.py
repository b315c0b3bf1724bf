"""The waiting queue: vLLM's methods, the component's order, and vLLM's own when that raises."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paged_core.errors import PluginError
from paged_core.interfaces.queue_order import QueueOrder
from paged_core.sequence import SequenceGroup

from paged_core_vllm.faults import Tally
from paged_core_vllm.views import GroupView
from paged_core_vllm.waiting import OwnOrder, PolicyQueue
from vllm_doubles import FakeCache, FakeRequest


class Longest(QueueOrder):
    """The longest prompt first; raises for a prompt that begins with 13 while ``is_bad``."""

    def __init__(self, *, stable: bool) -> None:
        self.stable = stable
        self.is_bad = True

    def key(self, group: SequenceGroup, now: float, /) -> Any:
        prompt = group.request.prompt
        if self.is_bad and prompt[0] == 13:
            raise ZeroDivisionError("unlucky")
        return -len(prompt)


class Queue:
    """A queue, and what made it."""

    def __init__(self, *, stable: bool = True, strict: bool = False, policy: str = "fcfs") -> None:
        self.tally, self.order, self.views = Tally(strict), Longest(stable=stable), {}
        self.queue = PolicyQueue(
            self.order, OwnOrder(policy), self.view_of, lambda: 0.0, self.tally
        )

    def view_of(self, request: FakeRequest) -> GroupView:
        made = GroupView(request, len(self.views), FakeCache(), 64)
        return self.views.setdefault(request.request_id, made)

    def add(self, name: str, length: int, first: int = 1, **more: Any) -> FakeRequest:
        request = FakeRequest(name, [first] * length, **more)
        self.queue.add_request(request)
        return request

    def drain(self) -> str:
        return "".join(self.queue.pop_request().request_id for _ in range(len(self.queue)))


@pytest.mark.parametrize("stable", [True, False], ids=["stable", "unstable"])
def test_requests_leave_in_the_order_of_the_component(stable: bool) -> None:
    made = Queue(stable=stable)
    for name, length in (("a", 2), ("b", 5), ("c", 2), ("d", 9)):
        made.add(name, length)
    made.queue.begin()
    assert [request.request_id for request in made.queue] == ["d", "b", "a", "c"]
    assert made.queue.peek_request().request_id == "d"
    assert made.drain() == "dbac"
    count = made.tally.queue_order
    assert (count.decisions, count.choices, count.differed, count.faults) == (4, 3, 2, 0)
    assert not made.queue


def test_a_preempted_request_waits_anew_and_comes_before_its_equals() -> None:
    made = Queue()
    first, second = made.add("a", 2), FakeRequest("p", [1, 1])
    second.status = SimpleNamespace(name="PREEMPTED")
    made.view_of(second).waiting_since = -5.0
    made.queue.prepend_request(second)
    assert made.views["p"].waiting_since == 0.0
    assert made.drain() == "pa"
    made.queue.prepend_requests([first, second])
    made.queue.remove_requests([first, FakeRequest("elsewhere", [1])])
    assert made.drain() == "p"


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
@pytest.mark.parametrize("stable", [True, False], ids=["stable", "unstable"])
def test_vllm_s_own_order_takes_over_from_a_component_that_raises(
    policy: str, stable: bool, caplog: pytest.LogCaptureFixture
) -> None:
    made = Queue(stable=stable, policy=policy)
    with caplog.at_level(logging.ERROR, "vllm.paged_core"):
        made.add("a", 2, priority=3)
        made.add("b", 5, priority=1, arrival_time=1.0)
        made.add("c", 1, first=13, priority=2, arrival_time=2.0)
        for _ in range(3):
            made.queue.begin()
            assert made.queue.peek_request().request_id == {"fcfs": "a", "priority": "b"}[policy]
    assert made.tally.queue_order.faults >= 3
    assert len(caplog.records) == 1
    text = caplog.text
    assert "Longest) raised ZeroDivisionError: unlucky (at " in text
    assert f"{__file__}:" in text
    made.order.is_bad = False
    made.queue.begin()
    assert made.drain() == "bac"


def test_a_strict_queue_ends_the_engine() -> None:
    made = Queue(strict=True)
    with pytest.raises(PluginError, match="raised ZeroDivisionError: unlucky"):
        made.add("c", 1, first=13)


@given(st.lists(st.tuples(st.integers(1, 4), st.sampled_from("arp")), max_size=30))
def test_both_queues_have_the_same_requests(calls: list[tuple[int, str]]) -> None:
    made, inside = Queue(stable=False), {}
    for number, (length, call) in enumerate(calls):
        if call == "a":
            first = 13 if length == 4 else 1
            request = made.add(f"r{number}", length, first=first)
            inside[request.request_id] = request
        elif inside and call == "r":
            made.queue.remove_request(inside.pop(sorted(inside)[length % len(inside)]))
        elif inside:
            made.queue.begin()
            assert inside.pop(made.queue.pop_request().request_id)
        assert {request.request_id for request in made.queue} == set(inside)
        assert len(made.queue) == len(inside)
