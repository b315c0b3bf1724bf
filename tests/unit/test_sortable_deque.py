"""The deque that is sorted on request, against one that is sorted every time."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paged_core.interfaces.queue_order import QueueOrder
from paged_core.sequence import SequenceGroup
from paged_policies.schedulers.sortable_deque import SortableDeque
from unit.block_tables import make_group
from unit.engines import ByPriority, Turning


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
