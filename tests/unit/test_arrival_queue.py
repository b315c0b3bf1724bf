"""What is to arrive comes in the order of its time, and of its number."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from paged_plugins.workloads.arrival_queue import ArrivalQueue


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=20), st.integers(0, 12))
def test_what_is_due_is_taken_out_in_order(asked: list[tuple[int, int]], now: int) -> None:
    """Each item, when it arrives, adds one that arrives so much later."""
    queue = ArrivalQueue[int, int]()
    for number, (at, _) in enumerate(asked):
        queue.add(at, number, number)
    taken = []
    for at, number in queue.due(now):
        taken.append((at, number))
        if number < len(asked):
            queue.add(at + asked[number][1], number + len(asked), number + len(asked))
    times = dict(enumerate(at for at, _ in asked))
    times |= {number + len(asked): sum(both) for number, both in enumerate(asked)}
    due = {number for number, at in times.items() if at <= now}
    assert {number for _, number in taken} == due
    assert all(at == times[number] for at, number in taken)
    assert [at for at, _ in taken] == sorted(at for at, _ in taken)
    left = [number for number in range(len(asked)) if number not in due]
    left += [number + len(asked) for number in range(len(asked)) if number in due]
    left = [number for number in left if number not in due]
    assert list(queue) == sorted(left, key=lambda number: (times[number], number))
    assert len(queue) == len(left)
    assert queue.next_at == min((times[number] for number in left), default=None)
