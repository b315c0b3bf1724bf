"""A waiting queue for vLLM, kept in order by a component of the slot ``queue_order``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from paged_core.interfaces.queue_order import QueueOrder
from paged_core.requests.waiting_queue import WaitingQueue
from paged_core.sequence import SequenceGroup

from paged_core_vllm.faults import Tally
from paged_core_vllm.views import GroupView


class OwnOrder(QueueOrder):
    """The order that vLLM's ``--scheduling-policy`` names."""

    def __init__(self, policy: str) -> None:
        self._is_priority = policy == "priority"

    def key(self, group: SequenceGroup, now: float, /) -> Any:
        if not self._is_priority:
            return ()  # that of the queue
        return group.request.priority, group.arrival, group.id


class PolicyQueue:
    """The methods of vLLM's ``RequestQueue``, over paged-core's own queue.

    A second queue has vLLM's own order. It says where the component differs, and is what is used
    from a fault of the component to the end of the step.

    Args:
        view_of: returns the view of a request.
        clock: seconds, as in arrival times.
    """

    def __init__(
        self,
        order: QueueOrder,
        own: QueueOrder,
        view_of: Callable[[Any], GroupView],
        clock: Callable[[], float],
        tally: Tally,
    ) -> None:
        self._order, self._view_of, self._clock, self._tally = order, view_of, clock, tally
        self._queue, self._own = WaitingQueue(order), WaitingQueue(own)
        self._is_broken = False
        self._is_stale = not order.stable

    def begin(self) -> None:
        """Note that a step begins: keys may have changed."""
        self._is_stale = self._is_broken or not self._order.stable

    def add_request(self, request: Any) -> None:
        self._push(self._view_of(request), WaitingQueue.push)

    def prepend_request(self, request: Any) -> None:
        """Put a request before its equals; one that was preempted waits anew."""
        view = self._view_of(request)
        if request.status.name == "PREEMPTED":
            view.waiting_since = self._clock()
        self._push(view, WaitingQueue.push_front)

    def prepend_requests(self, requests: Iterable[Any]) -> None:
        """Put back requests that vLLM has passed by in this step, the last one first."""
        for request in requests:
            self._push(self._view_of(request), WaitingQueue.push_front)

    def peek_request(self) -> Any:
        return self._head().inner

    def pop_request(self) -> Any:
        head = self._head()
        self._tally.queue_order.decided(len(self) > 1, head is not self._own.head())
        self._remove(head)
        return head.inner

    def remove_request(self, request: Any) -> None:
        self._remove(self._view_of(request))

    def remove_requests(self, requests: Iterable[Any]) -> None:
        """Remove those that are here: vLLM has another queue, too."""
        for request in requests:
            if (view := self._view_of(request)) in self._own:
                self._remove(view)

    def __bool__(self) -> bool:
        return len(self._own) > 0

    def __len__(self) -> int:
        return len(self._own)

    def __iter__(self) -> Iterator[Any]:
        self._refresh()
        return (view.inner for view in self._current.ordered())  # type: ignore[attr-defined]

    # ------------------------------------------------------------------ both queues

    @property
    def _current(self) -> WaitingQueue:
        return self._own if self._is_broken else self._queue

    def _head(self) -> GroupView:
        if self._is_stale:
            self._is_stale = False
            self._refresh()
        head = self._current.head()
        assert isinstance(head, GroupView)
        return head

    def _push(
        self, view: GroupView, push: Callable[[WaitingQueue, SequenceGroup, float], None]
    ) -> None:
        now = self._clock()
        push(self._own, view, now)
        if not self._is_broken:
            try:
                push(self._queue, view, now)
            except Exception as error:
                self._break(error)

    def _remove(self, view: GroupView) -> None:
        self._own.remove(view)
        if not self._is_broken:
            try:
                self._queue.remove(view)
            except Exception as error:
                self._break(error)

    def _refresh(self) -> None:
        now = self._clock()
        try:
            if self._is_broken:
                again = WaitingQueue(self._order)
                for view in self._own.ordered():
                    again.push(view, now)
                self._queue, self._is_broken = again, False
            else:
                self._queue.refresh(now)
        except Exception as error:
            self._break(error)

    def _break(self, error: Exception) -> None:
        self._is_broken = True
        self._tally.fault("queue_order", self._order, error)
