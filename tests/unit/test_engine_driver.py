"""Turns, idling and stalls."""

from __future__ import annotations

from threading import Event, Thread

import pytest

from paged_core.engine import driver as engine_driver
from paged_core.engine.clock import VirtualClock
from paged_core.engine.driver import EngineDriver
from paged_core.engine.engine import Engine
from paged_core.errors import EngineError
from paged_core.interfaces.scheduler import Schedule
from unit.engines import engine_with, request


def plan_nothing(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine.scheduler, "schedule", lambda _now: Schedule())


def test_a_step_without_requests_is_no_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_driver, "STALL_SECONDS", 0.0)
    driver = EngineDriver(engine_with())
    for _ in range(5):
        assert not driver.step().progressed


def test_a_scheduler_that_is_stuck_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_driver, "STALL_SECONDS", 0.0)
    driver = EngineDriver(engine_with())
    driver.add(request())
    plan_nothing(driver.engine, monkeypatch)
    driver.step()
    with pytest.raises(
        EngineError, match=r"TokenBudgetScheduler has planned nothing .* 1 requests"
    ):
        driver.step()
    monkeypatch.undo()
    assert driver.step().progressed


def test_progress_between_idle_steps_is_no_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_driver, "IDLE_SECONDS", 0.9)
    engine = engine_with()
    engine.clock = VirtualClock()
    driver = EngineDriver(engine)
    driver.add(request(max_tokens=9))
    for _ in range(4):
        with monkeypatch.context() as stuck:
            plan_nothing(driver.engine, stuck)
            driver.step()
            driver.step()
        assert driver.step().progressed


@pytest.mark.parametrize(("may_wait", "ttl", "expected"), [(0, None, 1), (5, None, 6), (0, 9, 10)])
def test_a_stall_is_reported_a_second_after_all_that_could_end_it(
    may_wait: float, ttl: float | None, expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_with()
    engine.clock = VirtualClock()
    engine.scheduler.may_wait = may_wait
    driver = EngineDriver(engine)
    driver.add(request())
    if ttl is not None:
        driver.pin(range(8), ttl=ttl)
    plan_nothing(engine, monkeypatch)
    with pytest.raises(EngineError, match="has planned nothing"):
        while True:
            driver.step()
    assert expected < engine.clock() < expected + 0.1


def test_another_thread_is_refused_and_an_abort_waits() -> None:
    driver = EngineDriver(engine_with())
    driver.add(request("A"))
    inside, leave = Event(), Event()

    def occupy() -> None:
        inside.set()
        leave.wait()

    occupant, aborting = (
        Thread(target=driver.use, args=(occupy,)),
        Thread(target=driver.abort, args=("A",)),
    )
    occupant.start()
    inside.wait()
    for use in (driver.step, lambda: driver.add(request("B")), lambda: driver.pin([1])):
        with pytest.raises(EngineError, match="another thread"):
            use()
    aborting.start()
    assert driver.engine.has_unfinished
    leave.set()
    occupant.join()
    aborting.join()
    assert not driver.engine.has_unfinished


def test_a_closed_engine_says_so() -> None:
    driver = EngineDriver(engine_with())
    driver.close()
    driver.close()
    with pytest.raises(EngineError, match="closed"):
        driver.step()


def test_an_outcome_names_what_was_aborted_before_it() -> None:
    driver = EngineDriver(engine_with())
    aborted, other = driver.add(request("A")), driver.add(request("B"))
    driver.step()
    driver.abort("A")
    outcome = driver.step()
    assert outcome.finished == [aborted]
    assert [sequence.group for sequence in outcome.advanced] == [other]
    assert driver.step().finished == []


def test_an_outcome_names_a_pin_that_expires_while_it_is_computed() -> None:
    now = [0.0]
    engine = engine_with(block_size=4, scheduler={"max_num_batched_tokens": 4})
    engine.clock = lambda: now[0]
    driver = EngineDriver(engine)
    pin = driver.pin(range(12), ttl=1.0)
    assert driver.step().finished == []
    now[0] = 2.0
    assert driver.step().finished == [pin.group]
