"""Conformance of queue orders."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise, product
from typing import Any, ClassVar

import pytest

from paged_core.engine.contexts import OrderContext
from paged_core.interfaces.queue_order import QueueOrder, SupportsQuantum, SupportsService
from paged_core.request import Request
from paged_core.requests.waiting_queue import WaitingQueue
from paged_core.sampling_params import SamplingParams
from paged_core.sequence import SequenceGroup, Status
from paged_testing.component import ComponentConformance
from paged_testing.policy_subjects import (
    NUM_DRAWN,
    WRITTEN_SHARES,
    WrittenLengths,
    check_costs_by_length,
    drawn_numbers,
    drawn_requests,
    empty_cache,
    extreme_requests,
    growing_groups,
    let_go,
    long_groups,
    preempt,
    requests_of_tenants,
    running_groups,
    untouched,
    waiting_groups,
    written_requests,
)
from paged_testing.repeats import ServesEveryWorkload
from paged_testing.use import instructions
from paged_testing.workloads import brief, simple_request, unlike

TIMES = (0.0, 3.5, 100.0)
"""Seconds at which the written requests are looked at."""
SERVED = (3, 1, 40, 2, 7, 1, 1, 12)
"""Tokens of each request that are served first."""

_SAMPLED: Sequence[Mapping[str, Any]] = ({"n": 2}, {"temperature": 1.0}, {"max_tokens": 9})
_ANOTHER: Sequence[tuple[str, Any]] = (
    *(("id", "z"), ("priority", 1), ("deadline", 9.0), ("prompt", (1,) * 5), ("prompt", (1,) * 9)),
    *((field, "b") for field in ("tenant", "session", "cache_salt")),
    *(("sampling", SamplingParams(**{"max_tokens": 4, **more})) for more in _SAMPLED),
)
"""Fields in which a request may differ from another one."""
_ASKED = ("key", "quantum_over", "served", "left")
"""Methods of one group that an engine calls."""
_PARTS: Sequence[Mapping[str, Any]] = ({}, {"length_predictor": WrittenLengths()})
"""Parts that orders are made with, beside a cache."""
_LATE = 1e9
"""Seconds since a clock began that are many, such as those since 1970."""


class QueueOrderCases(ComponentConformance):
    """The cases of :class:`~paged_testing.QueueOrderConformance`."""

    slot: ClassVar[str] = "queue_order"

    def expected(
        self, groups: Sequence[SequenceGroup], now: float, /
    ) -> Sequence[SequenceGroup] | None:
        """Return the groups in the order in which they must be served; ``None``: not specified.

        Args:
            groups: in arrival order.
            now: seconds.
        """
        return None

    def make(self) -> QueueOrder:
        """A fresh order with an empty cache."""
        made = self.build(OrderContext(kv_cache=empty_cache(self.registry)))
        assert isinstance(made, QueueOrder)
        return made

    # ------------------------------------------------------------------ written cases

    @pytest.mark.parametrize("now", TIMES)
    def test_compares_written_requests(self, now: float) -> None:
        self.check_comparisons(written_requests(), now)

    def test_compares_requests_that_are_extreme(self) -> None:
        """Any value that a request may have: schedulers compare their keys with others."""
        self.check_comparisons([*written_requests(), *extreme_requests()], 3.5)

    @pytest.mark.parametrize("now", TIMES)
    def test_asked_twice_it_answers_the_same(self, now: float) -> None:
        self.check_answers(written_requests(), now)

    @pytest.mark.parametrize("later", [0.5, 1e6])
    def test_keeps_the_order_of_written_requests_that_wait(self, later: float) -> None:
        self.check_stability(written_requests(), 1.0, later)

    @pytest.mark.parametrize("now", TIMES)
    def test_serves_written_requests_in_the_expected_order(self, now: float) -> None:
        self.check_order(written_requests(), now)
        turned = reversed(written_requests())
        late = [replace(request, arrival=_LATE + at) for at, request in enumerate(turned)]
        self.check_order(late, _LATE + now)
        extremes = (r for r in extreme_requests() if r.id.startswith(("priority", "deadline")))
        every = enumerate((*written_requests(), *extremes))
        self.check_order([replace(r, arrival=float(at)) for at, r in every], now)
        for number in range(NUM_DRAWN):
            self.check_order(drawn_requests(number), now, drawn_numbers(number))

    def test_what_the_order_does_not_look_at_does_not_matter(self) -> None:
        """Two requests that differ in one thing: in the expected order, or that of the queue."""
        usual = simple_request("usual", 5, 4)
        for field, value in _ANOTHER:
            other = replace(usual, **{"id": "another", field: value})
            for pair in ((usual, other), (other, usual)):
                self.check_order(pair, 2.0)
        self.check_order((usual, replace(usual, id="another")), 2.0, num_preemptions=(1, 0))

    def test_groups_that_have_gone_do_not_matter(self) -> None:
        """Others come to be where they were in memory, and get their ids; lengths are expected."""
        cache = empty_cache(self.registry)
        parts = OrderContext(kv_cache=cache, length_predictor=WrittenLengths())
        order, written = self.build(parts), written_requests()
        others = [replace(request, tenant=f"of {request.tenant}") for request in written]
        for request in (*written, *reversed(others)):
            groups = waiting_groups([replace(request, id="again")])
            key, alone = (each.key(groups[0], 3.5) for each in (order, self.build(parts)))
            assert key == alone, (
                f"the key of {brief(request)} is {key}, and {alone} where none was before it: keep "
                "nothing by the id of a request or of an object, which others get, or by a part of "
                "what it follows from"
            )
            if (service := _service_of(order)) is not None:
                service.left(groups[0])
            let_go(groups)

    def test_counts_service_of_written_requests(self) -> None:
        self.check_service(written_requests(), SERVED)

    def test_quanta_of_written_requests(self) -> None:
        for served in ((), (1,), (1, 1, 9), (9, 9, 1, 1, 1, 9) * 6):
            self.check_quanta(written_requests(), served, 100.0)

    def test_compares_groups_that_wait_run_and_were_preempted(self) -> None:
        """Schedulers also ask for the keys of running groups, to choose which is preempted."""
        for parts in _PARTS:
            self.check_growing(**parts)

    def test_a_request_may_leave_before_it_was_served(self) -> None:
        service = _service_of(self.make())
        if service is not None:
            for group in waiting_groups(written_requests()):
                service.left(group)

    @pytest.mark.parametrize("method", _ASKED)
    def test_a_call_costs_the_same_among_few_groups_and_many(self, method: str) -> None:
        costs = []
        for size in (16, 512):
            order = self.make()
            if not hasattr(order, method):
                return
            asked = [simple_request(f"r{number}", 4, 4) for number in range(size)]
            asked[1::2] = [unlike([each], at % 64)[0] for at, each in enumerate(asked[1::2])]
            groups = waiting_groups(asked)
            _calls(order, "key", groups)
            _tell(order, groups, [40] * size)
            if isinstance(order, SupportsQuantum):
                for group in groups:
                    group.status, group.first_token_at = Status.RUNNING, 0.0
                _calls(order, "quantum_over", groups)
            ask = partial(_calls, order, method, groups[:8])
            costs.append(instructions(ask, self.package, everywhere=True))
        assert costs[1] <= 2 * costs[0] + 1500, (  # tenants may be compared, by code of C
            f"8 calls of {method}() take {costs[0]} instructions among 16 groups, {costs[1]} among "
            "512"
        )

    @pytest.mark.parametrize("method", _ASKED)
    def test_a_call_costs_the_same_for_short_requests_and_long(self, method: str) -> None:
        """All running requests are asked about in each step."""

        def calls(prompt: int, answer: int, asked: bool) -> Callable[[], object]:
            cache, groups = long_groups(self.registry, prompt, answer, asked)
            order = self.build(OrderContext(kv_cache=cache))
            _calls(order, "key", groups)
            _tell(order, groups * (1 + answer), [prompt] * len(groups) + [1] * 4 * answer)
            return partial(_calls, order, method, groups, prompt)

        if hasattr(self.make(), method):
            check_costs_by_length(calls, self.package, f"{method}() of 4 that run")

    # ------------------------------------------------------------------ what is checked

    def check_comparisons(self, requests: Sequence[Request], now: float) -> None:
        """Check that any two keys have an order, also where lengths of some are expected."""
        for parts in _PARTS:
            order = self.build(OrderContext(kv_cache=empty_cache(self.registry), **parts))
            keys = [order.key(group, now) for group in waiting_groups(requests)]
            for one, other in product(keys, keys):
                smaller, larger, equal = one < other, other < one, one == other
                assert smaller + larger + equal == 1, f"{one!r} and {other!r} have no order"
            ranked = sorted(keys)
            assert all(not later < sooner for sooner, later in pairwise(ranked))

    def check_answers(self, requests: Sequence[Request], now: float) -> None:
        """Check that a key depends on the group and the time alone."""
        order, twin = self.make(), self.make()
        groups = waiting_groups(requests)
        with untouched(groups):
            before = [order.key(group, now) for group in groups]
        assert [order.key(group, now) for group in reversed(groups)] == before[::-1], (
            "a second call for the same group returns another key"
        )
        let_go(waiting_groups(requests))
        again = waiting_groups(requests)
        for at in (now - 1, now):
            of_twin = [twin.key(group, at) for group in again]
        assert of_twin == before, (
            f"the keys of {_briefly(groups)} are {before}, those of a second order for equal "
            f"groups, which was asked a second before, too, {of_twin}: runs cannot be repeated"
        )

    def check_growing(self, **parts: Any) -> None:
        """Check keys of groups that grow against those of orders that were not asked before."""
        orders = list[QueueOrder]()
        for stage, (cache, groups) in enumerate(growing_groups(self.registry)):
            orders = orders or [self.build(OrderContext(kv_cache=cache, **parts)) for _ in range(5)]
            for order in orders:
                _tell(order, groups, SERVED, 9.0 * stage)
            with untouched(groups):
                keys, fresh = (
                    [order.key(group, 99.0) for group in groups]
                    for order in (orders[0], orders[-1])
                )
                sorted(keys)
            orders.pop()
            for group, key, other in zip(groups, keys, fresh, strict=True):
                assert key == other, (
                    f"the key of {group} is {key}, and {other} of an order that was told the same "
                    "and not asked before it grew: a key depends on the group as it is now"
                )

    def check_stability(self, requests: Sequence[Request], now: float, later: float) -> None:
        """Check that a stable order stays the same while groups wait, whatever others do."""
        cache, lengths = empty_cache(self.registry), WrittenLengths()
        order = self.build(OrderContext(kv_cache=cache, length_predictor=lengths))
        if not order.stable:
            return
        groups = waiting_groups(requests)
        keys, numbers = [order.key(group, now) for group in groups], range(len(groups))
        ranks = sorted(numbers, key=keys.__getitem__)
        others = [replace(request, id=f"{request.id} runs") for request in requests]
        running = running_groups(cache, others, WRITTEN_SHARES)
        for group in running:
            group.number += len(groups)
        service = _service_of(order)

        def check(meanwhile: str, now: float) -> None:
            same = sorted(numbers, key=keys.__getitem__) == ranks  # a key may change itself
            assert same and keys == [order.key(group, now) for group in groups], (
                f"keys of groups that wait change while {meanwhile}; set stable = False"
            )

        check("others are admitted", now)
        _tell(order, running, SERVED)
        check("others are served", now)
        if service is not None:
            for group in running:
                service.left(group)
        check("others leave", now)
        lengths.learned = 4
        check("a length predictor learns", now)
        check("time passes", now + later)

    def check_order(
        self, requests: Sequence[Request], now: float, num_preemptions: Sequence[int] = ()
    ) -> None:
        """Check that a queue under the order serves in the expected one."""
        queue = WaitingQueue(self.make())
        groups = waiting_groups(requests)
        preempt(groups, num_preemptions)
        for group in groups:
            queue.push(group, now)
        wanted = self.expected(groups, now)
        got = [queue.pop() for _ in groups]
        assert sorted(group.number for group in got) == list(range(len(groups)))
        assert wanted is None or got == list(wanted), (
            f"at {now} s it serves {_briefly(got)}, not {_briefly(wanted or ())}"
        )

    def check_service(self, requests: Sequence[Request], served: Sequence[int]) -> None:
        """Check that service is counted and changes nothing about the groups."""
        order = self.make()
        assert hasattr(order, "served") == hasattr(order, "left"), (
            "an order needs both served() and left(); with one, the engine calls neither"
        )
        groups = waiting_groups(requests)
        with untouched(groups):
            _tell(order, groups, served)
            sorted(order.key(group, 100.0) for group in groups)
            _tell(order, groups, served, _LATE)
            sorted(order.key(group, _LATE + 100.0) for group in groups)
            service = _service_of(order)
            if service is not None:
                for group in groups:
                    service.left(group)

    def check_quanta(self, requests: Sequence[Request], served: Sequence[int], now: float) -> None:
        """Check that the end of a quantum depends on the group, its service and the time alone."""
        order, twin = self.make(), self.make()
        if not isinstance(order, SupportsQuantum):
            return
        assert isinstance(twin, SupportsQuantum)
        groups = waiting_groups(requests)
        for group in groups:
            group.status, group.first_token_at = Status.RUNNING, 0.0
        with untouched(groups):
            answers = [order.quantum_over(group, now) for group in groups]
            assert all(isinstance(answer, bool) for answer in answers), f"{answers}: not bools"
            for each in (order, twin):
                _tell(each, groups[:-1] * len(served), list(served) * len(groups))
            keys = [order.key(group, now) for group in groups]
            answers = [order.quantum_over(group, now) for group in groups]
            assert [order.key(group, now) for group in groups] == keys, (
                "quantum_over() changes keys: it is asked any number of times"
            )
            again = [order.quantum_over(group, now) for group in reversed(groups)]
        assert again == answers[::-1], "a second call returns something else"
        assert [twin.quantum_over(group, now) for group in groups] == answers, (
            "a second order returns something else for the same calls: runs cannot be repeated"
        )


def _briefly(groups: Iterable[SequenceGroup]) -> str:
    return ", ".join(brief(group.request) for group in groups)


def _service_of(order: QueueOrder) -> SupportsService | None:
    return order if isinstance(order, SupportsService) else None


def _calls(
    order: QueueOrder, method: str, groups: Sequence[SequenceGroup], num_tokens: int = 1
) -> None:
    call = getattr(order, method)
    more = {"served": (num_tokens, 9.0), "left": ()}.get(method, (9.0,))
    for group in groups:
        call(group, *more)


def _tell(
    order: QueueOrder, groups: Sequence[SequenceGroup], served: Sequence[int], since: float = 0.0
) -> None:
    """Report service to an order that counts it, one second apart."""
    service = _service_of(order)
    if service is not None:
        for now, (group, num_tokens) in enumerate(zip(groups, served, strict=False)):
            service.served(group, num_tokens, since + now)


class QueueOrderConformance(ServesEveryWorkload, QueueOrderCases):
    """Subclass it for a queue order. State the exact order by overriding :meth:`expected`::

    class TestLastComeFirst(QueueOrderConformance):
        component = "last_come_first"

        def expected(self, groups, now):
            return list(reversed(groups))
    """

    def answers(self, beside: Mapping[str, Any] | None = None) -> dict[str, list[Any]]:
        """Also the order of many tenants, of whom some have left."""
        order = self.make()
        groups = waiting_groups(requests_of_tenants(written_requests()[0]))
        _tell(order, groups, range(1, 1 + len(groups)))
        if (service := _service_of(order)) is not None:
            for group in groups[::3]:
                service.left(group)
        keys = [order.key(group, TIMES[-1]) for group in groups]
        found = {"many tenants": sorted(range(len(groups)), key=keys.__getitem__)}
        if isinstance(order, SupportsQuantum):
            for group in groups:
                group.status, group.first_token_at = Status.RUNNING, 0.0
            found["quanta"] = [order.quantum_over(group, TIMES[-1]) for group in groups]
        return {**super().answers(beside), **found}

    def check_written(self) -> None:
        super().check_written()
        self.check_comparisons(written_requests(), TIMES[-1])
        self.check_stability(written_requests(), *TIMES[:2])
        self.check_order(written_requests(), TIMES[-1])
        self.check_service(written_requests(), SERVED)
        self.check_quanta(written_requests(), SERVED, TIMES[-1])
        self.check_growing()
