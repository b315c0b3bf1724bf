"""The line that is sorted now and then, against a deque that is sorted every time."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paged_core.interfaces.queue_order import QueueOrder
from paged_core.sequence import SequenceGroup
from paged_policies.schedulers.waiting_line import WaitingLine
from unit.block_tables import make_group


class ByPriority(QueueOrder):
    def __init__(self) -> None:
        self.num_calls = 0

    def key(self, group: SequenceGroup, now: float, /) -> Any:
        self.num_calls += 1
        return group.request.priority


class Turning(QueueOrder):
    """Turns round with time: even seconds favour low priorities, odd ones high priorities."""

    stable = False

    def key(self, group: SequenceGroup, now: float, /) -> Any:
        return group.request.priority * (-1) ** int(now)


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
    line, model, now = WaitingLine(order), deque[SequenceGroup](), 0.0
    for action, number in actions:
        now += 1
        if action == "sort":
            line.sort(now)
            model = deque(sorted(model, key=lambda group, now=now: order.key(group, now)))  # type: ignore[misc]
        elif action.startswith("append"):
            group = make_group([1], priority=number)
            getattr(line, action)(group, now)
            getattr(model, action)(group)
        elif model and action == "popleft":
            assert line.popleft() is model.popleft()
        elif model:
            group = model[number % len(model)]
            line.remove(group)
            model.remove(group)
        assert list(line) == list(model)
        assert len(line) == len(model)
        if model:
            assert line[0] is model[0]


def test_sorting_again_asks_for_no_key() -> None:
    order = ByPriority()
    line = WaitingLine(order)
    for priority in (0, 0, 1, 5):
        line.append(make_group([1], priority=priority), 0.0)
    before = order.num_calls
    line.sort(0.0)
    assert order.num_calls == before  # they came in order
    line.append(make_group([1], priority=3), 0.0)
    line.sort(0.0)
    assert [group.request.priority for group in line] == [0, 0, 1, 3, 5]
    before = order.num_calls
    line.sort(0.0)
    line.popleft()
    line.sort(0.0)
    assert order.num_calls == before
