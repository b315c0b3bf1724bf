"""Conformance of admissions."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from math import isclose
from typing import ClassVar, cast

import pytest

from paged_core.checked.answers import AdmissionAnswers
from paged_core.engine.contexts import AdmissionContext
from paged_core.engine.engine import Engine
from paged_core.errors import AdmissionRefused, SettingsError
from paged_core.interfaces.admission import Admission, Decision, Held, Load
from paged_core.request import Request
from paged_testing.component import Repeats
from paged_testing.engines import StepClock, build_memory_engine, memory_settings, serve
from paged_testing.policy_subjects import extreme_requests, written_requests
from paged_testing.served import check_not_cut_short, check_nothing_leaked, check_served
from paged_testing.workloads import FOR_EVERY_POLICY, Situation, Workload, simple_request, unlike

LOADS = (
    Load(max_num_seqs=4, free_tokens=256),
    Load(num_running=4, max_num_seqs=4, free_tokens=3),
    Load(num_waiting=3, waiting_tokens=30, num_running=4, max_num_seqs=4),
    Load(num_waiting=10**6, waiting_tokens=10**9, num_running=2),
)
"""Engines when a request arrives: with nothing to do, with some, and with far too much."""


class AdmissionConformance(Repeats):
    """Subclass it for an admission::

    class TestOddTenants(AdmissionConformance):
        component = "odd_tenants"
    """

    slot: ClassVar[str] = "admission"
    num_uses: ClassVar[int] = 40
    """Each of all written requests."""
    bytes_free: ClassVar[int] = 2 << 10

    def make(self) -> Admission:
        """A fresh admission."""
        values = {**self.settings, self.slot: self._table}
        settings = memory_settings(self.registry, **values)
        made = self.build(AdmissionContext(settings=settings))
        assert isinstance(made, Admission)
        return made

    def test_decides_what_can_be_acted_on(self) -> None:
        admission, twin = self.make(), self.make()
        for one, other in zip(_ask(admission), _ask(twin), strict=True):
            assert one == other, f"it decides {one}, a second one {other}: runs cannot be repeated"
        later = _ask(self.make(), 1e5)
        for one, other in zip(_ask(self.make()), later, strict=True):
            untils = [each.until if isinstance(each, Held) else 0.0 for each in (one, other)]
            is_same = not isinstance(one, Held) or isclose(untils[0] + 1e5, untils[1], abs_tol=1e-3)
            assert type(one) is type(other) and is_same, (
                f"it decides {one}, and {other} where all happens 1e5 seconds later: `until` is a "
                "time on the engine's clock, which may begin anywhere"
            )

    def test_takes_as_many_requests_after_others_were_refused(self) -> None:
        """Bursts in an engine that has nothing to do, with much time between them."""
        values = {**self.settings, "num_blocks": 16, self.slot: self._table}
        engine, taken = build_memory_engine(self.registry, **values), list[int]()
        for number in range(5):
            burst = unlike([simple_request(f"r{place}", 3, 2) for place in range(40)], number)
            groups = serve(engine, Workload(tuple((0, request) for request in burst)))
            taken.append(len(groups))
            cast("StepClock", engine.clock).skipped += 1e4
        assert min(taken) == taken[0] and len({*taken[1:]}) == 1, (
            f"of 40 requests that arrive while nothing waits or runs it takes {taken}, one burst "
            "after the other: what it refused and what has ended is not there any more"
        )

    @pytest.mark.parametrize("situation", FOR_EVERY_POLICY.values(), ids=FOR_EVERY_POLICY)
    def test_what_it_does_not_refuse_is_served(self, situation: Situation) -> None:
        values = {**self.settings, self.slot: self._table}
        try:
            engine = build_memory_engine(self.registry, **situation.values(values))
        except SettingsError as error:
            pytest.skip(str(error))
        groups = serve(engine, situation.workload)
        check_served(engine, situation.workload, groups)
        if not situation.outgrown:
            check_not_cut_short(groups.values())

    def test_a_request_that_was_accepted_can_be_aborted_at_once(self) -> None:
        engine = build_memory_engine(self.registry, **{**self.settings, self.slot: self._table})
        for request in written_requests():
            _may_add(engine, request)
        for group in list(engine.groups):
            engine.abort(group.id)
        engine.step()
        assert not engine.has_unfinished
        check_nothing_leaked(engine)

    def check_written(self) -> None:
        _ask(self.make())
        self.test_takes_as_many_requests_after_others_were_refused()
        for situation in FOR_EVERY_POLICY.values():
            with suppress(pytest.skip.Exception):
                self.test_what_it_does_not_refuse_is_served(situation)

    def uses(self) -> Callable[[int], object]:
        """Much time passes between."""
        values = {**self.settings, "num_blocks": 16, self.slot: self._table}
        engine = build_memory_engine(self.registry, **values)

        def use(number: int) -> None:
            requests = unlike(written_requests(), number)
            serve(engine, Workload(tuple((0, replace(r, deadline=None)) for r in requests)))
            cast("StepClock", engine.clock).skipped += 1e4

        return use


def _ask(admission: Admission, begins: float = 0.0) -> list[Decision]:
    """Return what is decided over written requests, in time, under each load.

    Args:
        begins: seconds on the clock when the first one arrives.
    """
    decisions, answers = [], AdmissionAnswers()
    for number, load in enumerate(LOADS):
        for place, request in enumerate((*written_requests(), *extreme_requests())):
            now = begins + min(place, 7) + 30 * number
            due = None if request.deadline is None else request.deadline + begins
            asked = replace(request, id=f"{request.id} {number}", arrival=now, deadline=due)
            decision = admission.decide(asked, load, now)
            answers.decide(decision, asked, load, now)
            decisions.append(decision)
    return decisions


def _may_add(engine: Engine, request: Request) -> None:
    before = list(engine.groups)
    try:
        engine.add(request)
    except AdmissionRefused:
        assert list(engine.groups) == before, f"{request} was refused, and kept"
