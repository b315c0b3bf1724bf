"""Conformance of admissions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import count, islice, product
from typing import Any, ClassVar, Self, cast

import pytest

from paged_core.engine.contexts import AdmissionContext
from paged_core.engine.engine import Engine
from paged_core.errors import AdmissionRefused, SettingsError
from paged_core.interfaces.admission import Admission, Decision, Held, Load
from paged_core.interfaces.length_predictor import LengthPredictor
from paged_core.interfaces.observer import Observer
from paged_core.request import Request
from paged_testing.engines import StepClock, build_memory_engine, go_on, memory_settings, serve
from paged_testing.happenings import HAPPENINGS
from paged_testing.policy_subjects import (
    WrittenLengths,
    extreme_requests,
    requests_of_tenants,
    waiting_groups,
    written_requests,
)
from paged_testing.repeats import Repeats
from paged_testing.served import check_not_cut_short, check_nothing_leaked, check_served
from paged_testing.use import bytes_left
from paged_testing.workloads import FOR_EVERY_POLICY, Situation, Workload, simple_request, unlike

LOADS = (
    Load(max_num_seqs=4, free_tokens=256),
    Load(num_running=4, max_num_seqs=4),
    Load(num_waiting=3, waiting_tokens=30, num_running=4, max_num_seqs=4, free_tokens=3),
    Load(num_waiting=10**6, waiting_tokens=10**9, num_running=2),
    Load(num_running=2, free_tokens=256),
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

    def make(self, lengths: LengthPredictor | None = None) -> Admission:
        """A fresh admission."""
        values = {**self.settings, self.slot: self._table}
        settings = memory_settings(self.registry, **values)
        made = self.build(AdmissionContext(settings=settings, length_predictor=lengths))
        assert isinstance(made, Admission)
        return made

    def engine(self, **values: Any) -> Engine:
        """A small engine that has the admission."""
        table = {self.slot: self._table}
        return build_memory_engine(
            self.registry, **{"num_blocks": 16, **values, **self.settings, **table}
        )

    def test_decides_what_can_be_acted_on(self) -> None:
        """The same at any time: `until` is on the engine's clock, `retry_after` in seconds."""
        one, other = self.asked(), self.asked()
        assert one == other, f"it decides {one}, a second one {other}: runs cannot be repeated"
        for far in _LATER:
            for first, second in zip(one, self.asked(far), strict=True):
                assert _seconds(first) == pytest.approx(_seconds(second, far), abs=1e-3), (
                    f"it decides {first}, and {second} where all happens {far:g} seconds later: "
                    "`until` is a time on the engine's clock, which may begin anywhere, and "
                    "`retry_after` seconds from now"
                )

    def asked(self, begins: float = 0.0) -> list[Decision]:
        """Return what is decided over written requests under each load, some of which are aborted;
        over those that are too long for the engine; over many at once, while a step takes long; and
        then, with a length predictor, again over those, and over those of many tenants, who ask
        for much at once, the first of them last.

        Args:
            begins: seconds on the clock when the first ones arrive.
        """
        engine = self.engine(num_blocks=64)
        watched, clock = _Watched.install(engine), cast("StepClock", engine.clock)
        clock.skipped += begins
        for turn, watched.load in enumerate(LOADS):
            clock.skipped += 30 * turn
            arrivals, aborts = list[tuple[int, Request]](), list[tuple[int, str]]()
            for place, request in enumerate((*written_requests(), *extreme_requests())):
                name, step = f"{turn} {request.id}", place // 4
                due = None if request.deadline is None else request.deadline + begins
                asked = replace(request, id=name, arrival=clock() + step, deadline=due)
                arrivals.append((step, asked))
                aborts.append((step + place % 5, name))
            serve(engine, Workload(tuple(arrivals), tuple(aborts)))
            for _, asked in arrivals:
                if len(asked.prompt) > 64:
                    watched.decide(asked, watched.load, clock())
        usual = written_requests()[0]
        for number in range(20):
            _may_add(engine, replace(usual, id=f"many {number}", arrival=clock()))
            clock.skipped += 100 * (number == 15)
        serve(engine, Workload(()))
        check_nothing_leaked(engine)
        watched.inner = self.make(WrittenLengths())
        tenants = enumerate(requests_of_tenants(usual))
        many = [replace(each, prompt=(number,) * 2000) for number, each in tenants]
        for asked in (*written_requests(), *extreme_requests(), *many, *reversed(many)):
            watched.decide(asked, LOADS[0], clock())
        return watched.decisions

    def answers(self, beside: Mapping[str, Any] | None = None) -> dict[str, list[Any]]:
        return super().answers(beside) | {"written requests": self.asked()}

    def test_takes_as_many_requests_after_others_were_refused(self) -> None:
        """Bursts of a tenant in an engine that has nothing to do, with years between them, and
        requests that fail, or are aborted. One that learns may come to
        take fewer, as many as where these are of others."""
        taken = self._taken(40, "")
        elsewhere = taken if min(taken) == taken[0] else self._taken(taken[0], "other")
        as_many = taken == elsewhere and bool(taken[0]) == bool(taken[-1])
        assert as_many and len({*taken[2:]}) == 1, (
            f"of 40 requests that arrive while nothing waits or runs it takes {taken}, one burst "
            f"after the other, {elsewhere} where what fails or is aborted is of another tenant: "
            "what it refused, what was not added after all, what failed, was aborted or has ended "
            "is not there any more"
        )

    def _taken(self, size: int, whose: str) -> list[int]:
        """Return how many of each burst of a tenant are taken.

        Args:
            whose: tenant of what is aborted between them; if it is the same one, others fail.
        """
        engine, taken = self.engine(), list[int]()
        for number in range(5):
            burst = [simple_request(f"r{number}.{place}", 3, 2) for place in range(size)]
            groups = serve(engine, Workload(tuple((0, request) for request in burst)))
            taken.append(len(groups))
            for what, place in product(() if whose else _FAILURES, range(8)):
                with suppress(AdmissionRefused):
                    HAPPENINGS[what](engine, f"{what} {number}.{place}")
                serve(engine, Workload(()))
            for place in range(8):
                with suppress(AdmissionRefused):
                    asked = simple_request(f"a{number}.{place}", 3, 9, n=1 + place // 3)
                    engine.add(replace(asked, tenant=whose))
                    for _ in range(place % 3):
                        engine.step()
                    engine.abort(f"a{number}.{place}")
            serve(engine, Workload(()))
            cast("StepClock", engine.clock).skipped += 1e8
        return taken

    def test_keeps_no_more_of_a_tenant_who_goes_on_asking(self) -> None:
        """Each second, for two hours, so that windows of time come to their end, beside others."""
        admission, numbers = self.make(), count()
        usual = written_requests()[0]

        def an_hour() -> None:
            for number, tenant in product(islice(numbers, 3600), ("regular", "")):
                request = replace(usual, id=f"{tenant}{number}", tenant=tenant or f"t{number}")
                request = replace(request, arrival=float(number))
                admission.decide(request, LOADS[0], float(number))
                if isinstance(admission, Observer):
                    (group,) = waiting_groups([request])
                    admission.on_request(group, "added")
                    group.finished_at = float(number)
                    group.live.clear()
                    admission.on_request(group, "finished")

        grown = bytes_left(an_hour, an_hour)
        assert grown < self.bytes_free, (
            f"3600 requests of a tenant in an hour, and others, leave {grown} bytes, beside those "
            "of the hour before: what is over is to be dropped while the tenant goes on, too"
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

    def check_written(self) -> None:
        self.asked()
        self.test_takes_as_many_requests_after_others_were_refused()
        for situation in FOR_EVERY_POLICY.values():
            with suppress(pytest.skip.Exception):
                self.test_what_it_does_not_refuse_is_served(situation)

    def uses(self) -> Callable[[int], object]:
        """Requests of a tenant under each load, the first one long, some aborted, then many of no
        tenant at once, with much time between uses; every other one is of a tenant that always
        comes back. And others, beside a tenant of whom there is always one."""
        long = simple_request("long", 1500, 1)
        engine = self.engine(num_blocks=4, block_size=512, max_model_len=2048)
        watched, lasting = _Watched.install(engine), self.engine(num_blocks=24)

        def use(number: int) -> None:
            watched.load = LOADS[number % len(LOADS)]
            requests = [
                replace(each, tenant=f"tenant {number}" if at % 2 else "regular", deadline=None)
                for at, each in enumerate(unlike([long, *written_requests()], number))
            ]
            aborts = tuple((place % 3, each.id) for place, each in enumerate(requests[::2]))
            requests += [simple_request(f"m{number}.{place}", 3, 2) for place in range(16)]
            serve(engine, Workload(tuple((0, each) for each in requests), aborts))
            watched.decisions.clear()
            for each in (engine, lasting):
                cast("StepClock", each.clock).skipped += 1e4
            go_on(lasting, number)

        return use


class _Watched(Admission):
    """Passes on to the admission of an engine, under another load, and notes what it decides."""

    def __init__(self, inner: Admission) -> None:
        self.inner, self.load = inner, LOADS[0]
        self.decisions: list[Decision] = []

    @classmethod
    def install(cls, engine: Engine) -> Self:
        """Put one between ``engine`` and its admission."""
        engine._admission = watched = cls(engine._admission)
        return watched

    def decide(self, request: Request, load: Load, now: float, /) -> Decision:
        self.decisions.append(self.inner.decide(request, self.load, now))
        return self.decisions[-1]


_FAILURES = ("a request cannot be added", "the executor is lost", "code of a request raises")
_LATER = (2.0**17, 0.3125)
"""Seconds, by which times can be moved without being rounded."""


def _seconds(decision: Decision, begins: float = 0.0) -> tuple[str, float]:
    """Return the kind of a decision, and the seconds that it names, on a clock that begins at 0."""
    if isinstance(decision, Held):
        return "held", decision.until - begins
    return ("refused", decision.retry_after or 0.0) if decision else ("", 0.0)


def _may_add(engine: Engine, request: Request) -> None:
    before = list(engine.groups)
    try:
        engine.add(request)
    except AdmissionRefused:
        assert list(engine.groups) == before, f"{request} was refused, and kept"
