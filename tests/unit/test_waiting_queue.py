"""Queues of those that wait: under stable orders, under others, and sorted on request."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from paged_core.interfaces.queue_order import QueueOrder
from paged_core.requests.waiting_queue import WaitingQueue
from paged_core.sequence import SequenceGroup
from paged_policies.schedulers.sortable_deque import SortableDeque
from unit.block_tables import make_group
from unit.engines import ByPriority, Turning


def groups(*priorities: int) -> list[SequenceGroup]:
    return [make_group([1], priority=priority) for priority in priorities]


class TestQueue:
    def test_a_stable_order_is_asked_once_a_group(self) -> None:
        order = ByPriority()
        queue = WaitingQueue(order)
        for group in groups(*[0] * 50):
            queue.push(group, 0.0)
        for _ in range(10):
            queue.refresh(1.0)
            queue.head()
        assert order.num_calls == 50


class QueueMachine(RuleBasedStateMachine):
    """Compared with a list that is sorted at every look-up."""

    order: type[QueueOrder] = ByPriority

    def __init__(self) -> None:
        super().__init__()
        self.queue = WaitingQueue(self.order())
        self.now = 0.0
        self.keyed_at: dict[str, float] = {}
        self.model: list[SequenceGroup] = []  # those put at the front first

    def sorted(self) -> list[SequenceGroup]:
        order = self.order()
        return sorted(self.model, key=lambda group: order.key(group, self.keyed_at[group.id]))

    @rule(priority=st.integers(0, 2), front=st.booleans())
    def comes(self, priority: int, front: bool) -> None:
        (group,) = groups(priority)
        self.keyed_at[group.id] = self.now
        if front:
            self.queue.push_front(group, self.now)
            self.model.insert(0, group)
        else:
            self.queue.push(group, self.now)
            self.model.append(group)

    @precondition(lambda self: self.model)
    @rule()
    def pop(self) -> None:
        expected = self.sorted()[0]
        assert self.queue.head() is expected
        assert self.queue.pop() is expected
        self.model.remove(expected)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        group = data.draw(st.sampled_from(self.model))
        self.queue.remove(group)
        self.model.remove(group)

    @rule(seconds=st.integers(0, 2))
    def refresh(self, seconds: int) -> None:
        self.now += seconds
        self.queue.refresh(self.now)
        if not self.order.stable:
            self.keyed_at = dict.fromkeys(self.keyed_at, self.now)

    @invariant()
    def agrees(self) -> None:
        assert self.queue.ordered() == self.sorted()
        assert len(self.queue) == len(self.model)


class TurningMachine(QueueMachine):
    order = Turning


TestStable = QueueMachine.TestCase
TestStable.settings = hypothesis_settings(max_examples=50, stateful_step_count=30, deadline=None)
TestTurning = TurningMachine.TestCase
TestTurning.settings = TestStable.settings


@pytest.mark.parametrize("order", [ByPriority(), Turning()])
@given(
    actions=st.lists(
        st.tuples(
            st.sampled_from(["append", "append", "appendleft", "popleft", "remove", "sort"]),
            st.integers(0, 3),
        ),
        max_size=40,
    )
)
def test_as_a_deque_that_is_sorted(order: QueueOrder, actions: list[tuple[str, int]]) -> None:
    groups, model, now = SortableDeque(order), deque[SequenceGroup](), 0.0
    for action, number in actions:
        now += 1
        if action == "sort":
            groups.sort(now)
            model = deque(sorted(model, key=lambda group, now=now: order.key(group, now)))  # type: ignore[misc]
        elif action.startswith("append"):
            group = make_group([1], priority=number)
            getattr(groups, action)(group, now)
            getattr(model, action)(group)
        elif model and action == "popleft":
            assert groups.popleft() is model.popleft()
        elif model:
            group = model[number % len(model)]
            groups.remove(group)
            model.remove(group)
        assert list(groups) == list(model)
        assert len(groups) == len(model)
        if model:
            assert groups[0] is model[0]


def test_sorting_again_asks_for_no_key() -> None:
    order = ByPriority()
    groups = SortableDeque(order)
    for priority in (0, 0, 1, 5):
        groups.append(make_group([1], priority=priority), 0.0)
    before = order.num_calls
    groups.sort(0.0)
    assert order.num_calls == before  # they came in order
    groups.append(make_group([1], priority=3), 0.0)
    groups.sort(0.0)
    assert [group.request.priority for group in groups] == [0, 0, 1, 3, 5]
    before = order.num_calls
    groups.sort(0.0)
    groups.popleft()
    groups.sort(0.0)
    assert order.num_calls == before
