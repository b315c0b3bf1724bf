"""Simulated clusters: the order of events, what becomes of every request, and what is counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from paged_core.engine.contexts import EvictorContext
from paged_core.errors import EngineError, SettingsError
from paged_core.plugins.registry import Registry
from paged_core.request import Request
from paged_core.settings.schema import EngineSettings, settings_class
from paged_plugins.lab.cluster.simulate_cluster import simulate_cluster
from paged_plugins.lab.measures import ServiceLevel, measures
from paged_plugins.lab.runs.run_record import RequestRecord, RunRecord
from paged_plugins.lab.runs.run_workload import run_workload
from paged_plugins.routing.router import ReplicaLoad, Router, RouterContext
from paged_plugins.workloads.request import WorkloadRequest
from paged_plugins.workloads.workload import ListedWorkload, Workload
from paged_policies.evictors.random import RandomEvictor
from paged_testing import registry_with
from unit.cluster_doubles import CROWDS, IDLE, IGNORING, LOOKING, SERVED, STEP, Crowd, LookingRouter
from unit.faulty_settings import registry_of

pytestmark = pytest.mark.heavy


REGISTRY = registry_with()
ROUTERS = [*sorted(REGISTRY.of("router")), {"name": "prefix_affinity", "index": "exact"}]


def engine_settings(registry: Registry = REGISTRY, **values: Any) -> EngineSettings:
    """Settings of small engines whose steps all take ``STEP`` seconds, unless ``values`` differ."""
    flat: dict[str, Any] = {"name": "linear", "fixed": STEP}
    fields = registry.get("cost_model", "linear").settings.model_fields
    flat |= {name: 0.0 for name in fields if name.startswith("per_")}
    small = {"executor": "simulated", "num_blocks": 40, "block_size": 4, "cost_model": flat}
    return settings_class(registry)(**{**small, **values})


def listed(*requests: WorkloadRequest) -> ListedWorkload:
    return ListedWorkload("written", requests)


def asks(name: str, at: float, length: int = 5, output: int = 3, **more: Any) -> WorkloadRequest:
    """A request that shares nothing with others."""
    start = 1000 * sum(map(ord, name))
    prompt = (range(start, start + length),)
    return WorkloadRequest(id=name, at=at, prompt=prompt, output=output, **more)


def served(
    settings: EngineSettings, workload: Workload, seed: int = 0, **more: Any
) -> tuple[RunRecord, list[tuple[RequestRecord, int]]]:
    """Serve a workload; return the record, and the requests in the order in which they ended."""
    ended: list[tuple[RequestRecord, int]] = []
    record = simulate_cluster(
        settings,
        more.pop("registry", REGISTRY),
        workload,
        seed,
        on_request=lambda request, replica: ended.append((request, replica)),
        **more,
    )
    return record, ended


POLICIES = st.fixed_dictionaries(
    {
        "router": st.sampled_from(ROUTERS),
        "scheduler": st.sampled_from(("token_budget", "prefill_or_decode")),
        "num_blocks": st.sampled_from((24, 60)),
        "preemption": st.sampled_from(("recompute", "swap")),
    }
)
QUICK = hypothesis_settings(max_examples=20, deadline=None)


class TestEvents:
    @pytest.mark.parametrize(
        ("requests", "seen"),
        [
            # a step in flight has not ended: all that is known of `a` is its prompt of 5 tokens
            (
                (asks("a", 0.0), asks("b", 0.1), asks("c", 0.3), asks("d", 0.5)),
                [(0, 0), (1, 5), (2, 11), (3, 18)],
            ),
            # a step that ends when a request arrives has ended: `a` did with its second token
            ((asks("a", 0.0, output=2), asks("b", 0.5)), [(0, 0), (0, 0)]),
            # several sequences: a prompt of 5 tokens and two answers of one; then no load is left
            (
                (asks("a", 0.0, n=2), asks("b", 0.3), asks("c", 9.0)),
                [(0, 0), (1, 7), (0, 0)],
            ),
        ],
    )
    def test_a_router_sees_what_has_happened(
        self, requests: Sequence[WorkloadRequest], seen: Sequence[tuple[int, int]]
    ) -> None:
        registry = registry_with(LOOKING)
        settings = engine_settings(registry, router="faulty")
        served(settings, listed(*requests), num_replicas=1, registry=registry)
        assert LookingRouter.seen == [[each] for each in seen]

    def test_a_request_waits_for_the_step_in_flight_and_no_longer(self) -> None:
        _, ended = served(engine_settings(), listed(asks("a", 0), asks("b", 0.1)), num_replicas=1)
        first, second = (request for request, _ in ended)
        assert (first.admitted, first.first_token, first.finished) == (0.0, 0.25, 0.75)
        assert (second.admitted, second.first_token, second.finished) == (0.25, 0.5, 1.0)

    def test_replicas_step_beside_each_other(self) -> None:
        """Each on a clock of its own, which idles until its first request arrives."""
        workload = listed(asks("a", 0.0), asks("b", 0.1))
        _, ended = served(engine_settings(router="round_robin"), workload, num_replicas=2)
        assert [(each.id, each.finished, number) for each, number in ended] == [
            ("a", 0.75, 0),
            ("b", 0.85, 1),
        ]

    def test_a_follower_is_routed_anew_after_its_thinking_time(self) -> None:
        """Its prompt is that of ``a``, the answer, and its own."""
        later = asks("b", 1.0)
        workload = listed(asks("a", 0.0, followers=(later,)))
        _, ended = served(engine_settings(router="round_robin"), workload, num_replicas=2)
        (_, first), (follower, second) = ended
        assert (first, second) == (0, 1)
        assert (follower.arrival, follower.num_prompt) == (1.75, 5 + 3 + 5)

    def test_requests_that_are_refused_end_at_once_with_those_that_follow(self) -> None:
        workload = listed(asks("a", 1.0, length=500, followers=(asks("b", 0),)), asks("c", 2.0))
        advanced: list[int] = []
        record, ended = served(engine_settings(), workload, num_replicas=1, advance=advanced.append)
        assert [(each.id, each.finish_reason) for each, _ in ended] == [
            ("a", "ignored"),
            ("b", "ignored"),
            ("c", "length"),
        ]
        assert ([each.is_served for each in record.requests], sum(advanced)) == (
            [False, False, True],
            3,
        )
        assert record.failure is not None
        assert "'a'" in record.failure
        assert record.totals.elapsed == 1.75
        alone = listed(asks("a", 1.0, length=500))
        record, _ = served(engine_settings(), alone, num_replicas=1)
        assert record.totals.elapsed == 0

    def test_a_step_that_takes_no_time_ends_after_all_that_end_with_the_one_before(self) -> None:
        """``c`` is ignored by the step after that of ``a``, at the time at which ``b`` ends."""
        requests = asks("a", 0.0, output=1), asks("b", 0.0, output=1), asks("c", 0.1, priority=1)
        registry = registry_with(IGNORING)
        settings = engine_settings(registry, scheduler="faulty", router="round_robin")
        _, ended = served(settings, listed(*requests), num_replicas=2, registry=registry)
        assert [(each.id, each.finished, number) for each, number in ended] == [
            ("a", STEP, 0),
            ("b", STEP, 1),
            ("c", STEP, 0),
        ]

    def test_a_request_that_is_refused_is_no_load_for_the_next(self) -> None:
        """All three arrive at once."""
        workload = listed(asks("a", 0.0, length=500), asks("b", 0.0), asks("c", 0.0))
        _, ended = served(engine_settings(router="least_loaded"), workload, num_replicas=2)
        assert [(each.id, number) for each, number in ended] == [("a", 0), ("c", 0), ("b", 1)]

    def test_a_scheduler_that_plans_nothing_is_reported(self) -> None:
        registry = registry_with(IDLE)
        settings = engine_settings(registry, scheduler="faulty")
        with pytest.raises(EngineError, match=r"replica 0: scheduler .*IdleScheduler has planned"):
            served(settings, listed(asks("a", 0.0)), num_replicas=1, registry=registry)


class AnsweringRouter(Router):
    """Answers, or raises, what it is told."""

    answer: ClassVar[Any] = 0
    at_the_end: ClassVar[bool] = False

    def __init__(self, options: Any, context: RouterContext, /) -> None:
        pass

    def route(self, request: Request, session: str, replicas: Mapping[int, ReplicaLoad], /) -> int:
        return 0 if self.at_the_end else self._answer()

    def finished(self, request: Request, replica: int, /) -> None:
        if self.at_the_end:
            self._answer()

    def _answer(self) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class TestFaultsOfRouters:
    @pytest.mark.parametrize("answer", [-1, 2, None, 1.0, True, "0" * 1000])
    def test_an_answer_that_is_no_replica(
        self, answer: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(AnsweringRouter, "answer", answer)
        with pytest.raises(EngineError) as raised:
            self._served()
        text = str(raised.value)
        assert text.startswith(f"router 'faulty' answered {answer!r:.80} for request 'a'; ")
        assert "has to return one of the numbers of the replicas it is given, 0, 1 (" in text

    @pytest.mark.parametrize("at_the_end", [False, True])
    def test_what_it_raises(self, at_the_end: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(AnsweringRouter, "answer", StopIteration())
        monkeypatch.setattr(AnsweringRouter, "at_the_end", at_the_end)
        with pytest.raises(EngineError) as raised:
            self._served()
        text = str(raised.value)
        assert text.startswith(f"router 'faulty' raised StopIteration (at {__file__}:")
        assert text.endswith(" in _answer)")

    @staticmethod
    def _served() -> None:
        registry = registry_of("router", AnsweringRouter)
        settings = engine_settings(registry, router="faulty")
        served(settings, listed(asks("a", 0.0)), num_replicas=2, registry=registry)


class TestProperties:
    @QUICK
    @given(CROWDS, POLICIES, st.integers(1, 5), st.integers(0, 3))
    def test_every_request_ends_once_where_it_was_routed_and_time_never_goes_back(
        self, workload: Crowd, policies: dict[str, Any], num_replicas: int, seed: int
    ) -> None:
        settings = engine_settings(**policies)
        record, ended = served(settings, workload, seed, num_replicas=num_replicas)
        drawn = [each.id for first in workload.draw(seed) for each in first.family()]
        assert Counter(request.id for request, _ in ended) == Counter(drawn)
        times = [request.finished for request, _ in ended]
        assert times == sorted(times)
        for request, _ in ended:
            passed = (request.arrival, request.admitted, request.first_token, request.finished)
            known = [each for each in passed if each is not None]
            assert known == sorted(known)
        counts = Counter(number for _, number in ended)
        assert [each.num_requests for each in record.replicas] == [
            counts[number] for number in range(num_replicas)
        ]
        assert sum(each.num_generated for each in record.replicas) == sum(
            request.num_output for request, _ in ended
        )
        preempted = sum(request.num_preemptions for request, _ in ended)
        assert record.totals.num_preemptions == preempted

    @QUICK
    @given(SERVED, POLICIES, st.integers(0, 3))
    def test_a_cluster_of_one_does_what_one_engine_does(
        self, workload: Crowd, policies: dict[str, Any], seed: int
    ) -> None:
        settings = engine_settings(**policies)
        alone = run_workload(settings, REGISTRY, workload, seed)
        record, ended = served(settings, workload, seed, num_replicas=1)
        assert [request for request, _ in ended] == alone.requests
        (totals,) = record.replicas
        assert (totals.num_steps, totals.busy_seconds) == (
            alone.totals.num_steps,
            pytest.approx(alone.totals.busy_seconds),
        )
        assert record.totals.elapsed == alone.totals.elapsed
        assert record.totals.num_preemptions == alone.totals.num_preemptions
        assert record.totals.num_evictions == alone.totals.num_evictions
        assert record.totals.recomputed_tokens == alone.totals.recomputed_tokens
        assert record.token_gaps == alone.token_gaps


class TestService:
    def test_what_is_drawn_goes_by_run_setting_and_replica(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seeds, make = [], RandomEvictor.__init__

        def made(self: RandomEvictor, options: Any, context: EvictorContext) -> None:
            seeds.append(context.seed)
            make(self, options, context)

        monkeypatch.setattr(RandomEvictor, "__init__", made)
        for setting, run in ((0, 0), (0, 1), (1, 0), (1, 1)):
            settings = engine_settings(evictor="random", seed=setting)
            served(settings, listed(asks("a", 0.0)), run, num_replicas=3)
        assert (seeds[0], seeds[3]) == (0, 1)
        assert len({*seeds}) == 12

    def test_measures_replicas_by_their_tokens(self) -> None:
        workload = listed(asks("a", 0.0, output=9), asks("b", 0.0, output=3))
        record, _ = served(engine_settings(router="round_robin"), workload, num_replicas=2)
        found = measures(record, ServiceLevel())
        assert found["replica_max_over_mean"] == 1.5
        assert found["replica_jain"] == pytest.approx(12**2 / (2 * (81 + 9)))
        assert found["idle_share"] == pytest.approx(6 / 18)
        assert found["throughput_tokens_per_s"] == pytest.approx(12 / 2.25)

    def test_measures_nothing_of_no_requests(self) -> None:
        record, _ = served(engine_settings(), listed(), num_replicas=2)
        assert measures(record, ServiceLevel()) == {
            "preemptions": 0,
            "recomputed_tokens": 0,
            "evictions": 0,
            "peak_blocks": 0,
            "steps": 0,
            "makespan_s": 0,
            "refused": 0,
            "failed": 0,
            "cut": 0,
        }


@pytest.mark.parametrize(
    ("num_replicas", "values", "message"),
    [
        (0, {}, "there may be 1 to 100,000"),
        (10**6, {}, "there may be 1 to 100,000"),
        (1, {"executor": "memory"}, "'memory' runs in real time"),
        (1, {"async_scheduling": True}, "leave `async_scheduling` out"),
    ],
)
def test_what_is_no_cluster_is_refused(
    num_replicas: int, values: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        served(engine_settings(**values), listed(), num_replicas=num_replicas)
