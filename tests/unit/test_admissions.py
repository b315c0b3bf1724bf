"""Admissions: what each decides, and what engines, drivers and simulations do about it."""

from __future__ import annotations

from dataclasses import replace
from threading import Thread
from typing import Any, cast

import pytest

from paged_core.engine.clock import VirtualClock
from paged_core.engine.contexts import AdmissionContext
from paged_core.engine.driver import EngineDriver
from paged_core.errors import AdmissionRefused, PluginError
from paged_core.interfaces.admission import Admission, Held, Load, Refused
from paged_core.interfaces.length_predictor import ExpectedLength, LengthPredictor
from paged_core.interfaces.observer import StepRecord
from paged_core.interfaces.scheduler import Queues
from paged_core.llm import LLM
from paged_core.request import FinishReason, Request
from paged_core.sequence import SequenceGroup
from paged_core.settings.schema import settings_class
from paged_plugins.lab.cluster.simulate_cluster import simulate_cluster
from paged_plugins.lab.measures import GOODPUT, ServiceLevel, measures
from paged_plugins.workloads.workload import ListedWorkload
from paged_policies.admission.bounded import BoundedAdmission
from paged_policies.admission.deadline import DeadlineAdmission
from paged_testing.engines import build_memory_engine
from paged_testing.policy_subjects import waiting_groups
from paged_testing.served import check_nothing_leaked
from paged_testing.workloads import simple_request
from unit.engines import REGISTRY, Recorder
from unit.faulty_settings import registry_of
from unit.lab_runs import asks, run, simulated

CONTEXT = AdmissionContext(settings=settings_class(REGISTRY)(executor="memory"))
HOLDS: dict[str, Any] = {"name": "token_bucket", "rate": 0.1, "burst": 1, "over": "hold"}
"""One request of a tenant at once, and one each ten seconds after it."""
REFUSES = {**HOLDS, "over": "refuse"}


def named(name: str, tenant: str = "", **fields: Any) -> Request:
    return replace(simple_request(name, 4, 3), tenant=tenant, **fields)


# ---------------------------------------------------------------------- the engine


def test_a_request_that_is_held_waits_until_its_time() -> None:
    seen = Recorder()
    engine = build_memory_engine(admission=HOLDS, observers=[seen])
    first, held = (engine.add(named(name)) for name in "AB")
    assert engine.metrics.num_unfinished == 2
    assert not engine.held_for
    while engine.has_unfinished:
        engine.step()
    assert (first.admitted_at, held.admitted_at) == (0, 10)
    for step in seen.steps[:10]:
        assert [group.id for group in step.queues.waiting] == ["B"]
    assert next(event for name, event in seen.requests if name == "B") == "added"
    check_nothing_leaked(engine)


def test_a_request_that_is_held_can_be_aborted() -> None:
    engine = build_memory_engine(admission=HOLDS, queue_order="fair")
    for name in "ABC":
        engine.add(named(name))
    assert engine.abort("B") is not None
    assert [group.id for group in engine.step().finished] == ["B"]
    while engine.has_unfinished:
        engine.step()
    assert engine.num_steps == 20 + 3  # what B has taken from the bucket stays taken
    check_nothing_leaked(engine)


def test_a_refused_request_leaves_the_engine_as_it_was() -> None:
    seen = Recorder()
    engine = build_memory_engine(admission=REFUSES, observers=[seen])
    engine.add(named("A"))
    with pytest.raises(
        AdmissionRefused, match=r"'B' was refused: tenant '' is above 0.1"
    ) as caught:
        engine.add(named("B"))
    assert caught.value.retry_after == pytest.approx(10)
    assert [group.id for group in engine.groups] == ["A"]
    assert (engine.metrics.num_refused, engine.metrics.num_unfinished) == (1, 1)
    assert seen.requests == [("A", "added"), ("B", "refused")]
    engine.add(named("C", "other"))
    pin = engine.pin(range(8))
    assert pin.group is not None


def test_held_requests_end_with_the_others_if_policies_are_made_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = build_memory_engine(admission=HOLDS)
    groups = [engine.add(named(name)) for name in "AB"]
    monkeypatch.setattr(engine.scheduler, "schedule", lambda now: 1 / 0)
    engine.step()
    assert [each.sequences[0].finish_reason for each in groups] == [FinishReason.ERROR] * 2
    engine.step()
    assert not engine.held_for


class Wrong(Admission):
    """Decides by what a test says."""

    def __init__(self, options: Any, context: Any, /) -> None:
        pass

    def decide(self, request: Request, load: Load, now: float, /) -> Any:
        return {"number": 7, "reason": Refused(""), "never": Held(float("inf"))}[request.id]


@pytest.mark.parametrize("name", ["number", "reason", "never", "raise"])
def test_a_wrong_decision_is_the_components_fault(name: str) -> None:
    engine = build_memory_engine(registry_of("admission", Wrong), admission="faulty")
    with pytest.raises(PluginError, match=f"'{name}' was not added: admission 'faulty'"):
        engine.add(named(name))
    assert not engine.has_unfinished


def test_what_is_refused_of_a_batch_ends_with_an_error() -> None:
    with LLM(executor="memory", num_blocks=64, max_model_len=64, admission=REFUSES) as llm:
        served, refused = llm.generate([[1, 2, 3], [4, 5]])
        assert served.outputs[0].finish_reason is FinishReason.LENGTH
        (end,) = refused.outputs
        assert (end.finish_reason, end.token_ids, refused.finished) == ("error", [], True)
        assert "was refused: tenant" in (end.error or "")
        with pytest.raises(AdmissionRefused):
            llm.add([1, 2])
        (said,) = llm.stream([1, 2])
        assert said.outputs[0].error is not None


# ---------------------------------------------------------------------- time passes


def test_a_driver_sleeps_until_the_hold_ends() -> None:
    clock = VirtualClock(50.0)
    engine = build_memory_engine(admission=HOLDS, clock=clock)
    groups = [engine.add(named(name)) for name in "AB"]
    driver = EngineDriver(engine)
    while engine.has_unfinished:
        driver.step()
    assert [group.admitted_at for group in groups] == [50, pytest.approx(60)]
    assert engine.num_steps < 10


def test_a_thread_that_sleeps_for_a_hold_hears_of_what_is_posted() -> None:
    ended: list[str] = []

    def listen(group: SequenceGroup) -> None:
        if not group.live:
            ended.append(group.id)

    hold = {**HOLDS, "rate": 1e-3}
    with LLM(executor="memory", num_blocks=64, max_model_len=64, admission=hold) as llm:
        driver = EngineDriver(llm.engine)
        thread = Thread(target=driver.run, daemon=True)
        for name in "AB":
            driver.submit(named(name), listener=listen)
        thread.start()
        driver.post(lambda engine: engine.held_for).result(60)
        driver.submit(named("C", "other"), listener=listen).result(60)
        driver.abort("B")
        driver.close()
        thread.join(60)
    assert set(ended) == set("ABC")


def test_simulations_go_on_at_the_end_of_a_hold_or_with_an_arrival() -> None:
    requests = [asks("a", 4, 2), asks("b", 4, 2), asks("c", 4, 2, at=5.0, tenant="other")]
    record = run(requests, admission=HOLDS)
    found = {each.id: (each.admitted, each.finished) for each in record.requests}
    assert found == {"a": (0, 2), "c": (5, 7), "b": (pytest.approx(10), pytest.approx(12))}
    workload = ListedWorkload("listed", requests)
    cluster = simulate_cluster(
        simulated(admission=HOLDS, router="round_robin"), REGISTRY, workload, 0, num_replicas=1
    )
    assert {each.id: (each.admitted, each.finished) for each in cluster.requests} == found


def test_simulations_name_and_count_what_is_refused() -> None:
    (turn,) = [asks("b.1", 4, 2, at=1.0)]
    requests = [asks("a", 4, 2), asks("b", 4, 2, followers=(turn,)), asks("c", 4, 2, tenant="t")]
    record = run(requests, admission=REFUSES)
    assert {each.id: each.finish_reason for each in record.requests} == {
        **dict.fromkeys(("a", "c"), "length"),
        **dict.fromkeys(("b", "b.1"), "refused"),
    }
    assert record.failure is not None
    found = measures(record, ServiceLevel(e2e_ms=1e6))
    assert (found["refused"], found["failed"]) == (2, 0)
    assert found[GOODPUT] == pytest.approx(2 / record.totals.elapsed)


# ---------------------------------------------------------------------- what each decides


def made(name: str, lengths: LengthPredictor | None = None, **options: Any) -> Admission:
    component = REGISTRY.get("admission", name)
    context = replace(CONTEXT, length_predictor=lengths)
    return cast("Admission", component.load()(component.settings(name=name, **options), context))


def test_bounded_takes_anything_where_nothing_waits() -> None:
    admission = made("bounded", max_waiting_requests=2, max_waiting_tokens=10)
    assert isinstance(admission, BoundedAdmission)
    large, small = simple_request("a", 99, 1), simple_request("b", 3, 1)
    assert admission.decide(large, Load(), 0.0) is None
    assert admission.decide(small, Load(num_waiting=1, waiting_tokens=7), 0.0) is None
    (group,) = waiting_groups([small])
    group.admitted_at = 8.0
    admission.on_request(group, "admitted")
    for load in (Load(num_waiting=1, waiting_tokens=8), Load(num_waiting=2, waiting_tokens=2)):
        refused = admission.decide(small, load, 0.0)
        assert isinstance(refused, Refused)
        assert f"{load.num_waiting} requests with {load.waiting_tokens} tokens" in refused.reason
        assert refused.retry_after == pytest.approx(0.8)


class Ten(LengthPredictor):
    def expect(self, request: Request, /) -> ExpectedLength | None:
        return ExpectedLength(10)


def step(now: float, waiting: int, ended: int) -> StepRecord:
    """A step of 0.1 s in which four sequences decode."""
    of_none = dict.fromkeys(("preempted", "swapped_out", "swapped_in", "ignored"), ())
    return StepRecord(
        **cast("dict[str, Any]", of_none),
        number=0,
        now=now,
        scheduled=dict.fromkeys("abcd", 1),
        cached={},
        finished=list("abcd")[:ended],
        queues=Queues((), waiting_groups([simple_request(f"{n}", 4, 1) for n in range(waiting)])),
        free_blocks=0,
        seconds={},
        ended=now + 0.1,
    )


def test_deadline_refuses_what_it_predicts_to_be_late() -> None:
    """A token takes 0.1 s, and one request in a second ends while others wait."""
    admission = made("deadline", Ten(), default_slo=5.0)
    assert isinstance(admission, DeadlineAdmission)
    full = Load(num_waiting=2, waiting_tokens=8, num_running=4, max_num_seqs=4, free_tokens=99)
    asked = simple_request("a", 4, 900)
    assert admission.decide(asked, full, 0.0) is None  # it has seen nothing yet
    for number in range(1000):
        admission.on_step(step(0.1 * number, waiting=3, ended=number % 10 == 9))
    for seconds, is_met in ((3.9, False), (4.3, True)):  # three for a place, 1.1 for its own tokens
        decision = admission.decide(replace(asked, deadline=100 + seconds), full, 100.0)
        assert (decision is None) is is_met
    late = admission.decide(replace(asked, deadline=103.0), full, 100.0)
    assert isinstance(late, Refused)
    assert late.retry_after == pytest.approx(1.1, abs=0.1)
    short = replace(full, num_waiting=0, waiting_tokens=0, max_num_seqs=None, free_tokens=0)
    assert admission.decide(replace(asked, deadline=101.7), short, 100.0) is not None
    never = admission.decide(replace(asked, deadline=100.5), Load(free_tokens=99), 100.0)
    assert isinstance(never, Refused)
    assert never.retry_after is None
    assert admission.decide(replace(asked, arrival=100.0), full, 100.0) is None
    assert admission.decide(replace(asked, arrival=98.0), full, 100.0) is not None


def test_a_token_bucket_forgets_tenants_whose_bucket_is_full() -> None:
    admission = made("token_bucket")
    for number in range(1000):
        admission.decide(named("a", f"{number}"), Load(), 10.0 * number)
    assert len(cast("Any", admission)._full_at) < 4
