"""Calls, posts, idling and stalls of an engine that threads and event loops share."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from random import Random
from threading import Event, Thread, current_thread, get_ident
from typing import Any

import pytest

from paged_core.engine import driver as engine_driver
from paged_core.engine.clock import VirtualClock
from paged_core.engine.driver import EngineDriver
from paged_core.engine.engine import Engine
from paged_core.errors import EngineError, RequestError
from paged_core.interfaces.scheduler import Schedule
from paged_core.request import FinishReason
from paged_core.sequence import SequenceGroup
from paged_testing import FailingExecutor
from unit.engines import engine_with, request

LONG = 30
"""Seconds after which a test gives up."""


def plan_nothing(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine.scheduler, "schedule", lambda _now: Schedule())


class Heard:
    """A listener that notes what it hears."""

    def __init__(self) -> None:
        self.lengths: list[int] = []
        self.groups: list[SequenceGroup] = []
        self.ended = Event()

    def __call__(self, group: SequenceGroup) -> None:
        self.groups.append(group)
        self.lengths.append(len(group.sequences[0].output))
        if not group.live:
            self.ended.set()

    @property
    def finish_reason(self) -> FinishReason | None:
        assert self.ended.wait(LONG)
        return self.groups[-1].sequences[0].finish_reason


@contextmanager
def running(driver: EngineDriver) -> Iterator[Thread]:
    """Let a thread run the steps; what :meth:`run` raises is kept as its ``error``."""

    def run() -> None:
        try:
            driver.run()
        except EngineError as error:
            current_thread().error = error  # type: ignore[attr-defined]

    thread = Thread(target=run)
    thread.start()
    try:
        yield thread
    finally:
        driver.close()
        thread.join(LONG)
        assert not thread.is_alive()


@contextmanager
def occupied(driver: EngineDriver) -> Iterator[int]:
    """Let another thread use the engine meanwhile."""
    inside, leave = Event(), Event()

    def occupy() -> None:
        inside.set()
        leave.wait(LONG)

    thread = Thread(target=driver.use, args=(occupy,))
    thread.start()
    assert inside.wait(LONG)
    assert thread.ident is not None
    yield thread.ident
    leave.set()
    thread.join(LONG)


class TestPosts:
    def test_are_done_in_order_by_the_thread_that_uses_the_engine(self) -> None:
        driver, done = EngineDriver(engine_with()), list[tuple[int, int]]()
        with occupied(driver) as owner:
            for number in range(5):
                future = driver.post(lambda _, number=number: done.append((number, get_ident())))
            assert not future.done()
        assert done == [(number, owner) for number in range(5)]

    def test_report_what_they_raise(self) -> None:
        driver = EngineDriver(engine_with())
        driver.add(request("A"))
        with pytest.raises(RequestError, match="served already"):
            driver.submit(request("A"), listener=Heard()).result()
        assert driver.step().progressed

    def test_may_be_cancelled_until_they_are_begun(self) -> None:
        driver = EngineDriver(engine_with())
        with occupied(driver):
            future = driver.submit(request("A"), listener=Heard())
            assert future.cancel()
        assert not driver.engine.has_unfinished

    def test_that_raise_ctrl_c_raise_it_where_they_are_done(self) -> None:
        driver = EngineDriver(engine_with())

        def interrupted(engine: Engine) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            driver.post(interrupted)
        assert not driver.step().progressed

    def test_do_not_keep_others_from_steps(self) -> None:
        driver, stop = EngineDriver(engine_with()), Event()

        def post() -> None:
            while not stop.is_set():
                driver.post(lambda engine: engine.metrics).result(LONG)

        posters = [Thread(target=post) for _ in range(2)]
        for poster in posters:
            poster.start()
        try:
            for _ in range(300):
                driver.step()
        finally:
            stop.set()
            for poster in posters:
                poster.join(LONG)

    def test_wake_a_step_that_has_nothing_to_plan(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(engine_driver, "IDLE_SECONDS", 10 * LONG)
        engine = engine_with()
        plan_nothing(engine, monkeypatch)
        driver = EngineDriver(engine)
        with running(driver):
            driver.submit(request("A"), listener=Heard()).result(LONG)
            assert driver.post(lambda engine: engine.has_unfinished).result(LONG)


class TestRun:
    def test_serves_threads_as_if_each_were_alone(self) -> None:
        alone = engine_with()
        expected = {}
        for number in range(12):
            group = alone.add(request(str(number), prompt=(1, number), max_tokens=8))
            while alone.has_unfinished:
                alone.step()
            expected[group.id] = group.sequences[0].output
        driver = EngineDriver(engine_with(num_blocks=16))
        heard = {name: Heard() for name in expected}

        def submit(names: list[str]) -> None:
            for name in names:
                asked = request(name, prompt=(1, int(name)), max_tokens=8)
                driver.submit(asked, listener=heard[name]).result(LONG)

        with running(driver):
            threads = [Thread(target=submit, args=([*expected][k::3],)) for k in range(3)]
            for thread in threads:
                thread.start()
            for name, listener in heard.items():
                assert listener.finish_reason is FinishReason.LENGTH
                assert listener.groups[-1].sequences[0].output == expected[name]
                assert listener.lengths == list(range(9))
        assert driver._listeners == {}
        assert driver.engine.kv_cache.num_free == 16

    def test_sleeps_while_there_is_nothing_to_do(self) -> None:
        driver, heard = EngineDriver(engine_with()), Heard()
        with running(driver) as thread:
            driver.submit(request("A", max_tokens=3), listener=heard)
            assert heard.finish_reason is FinishReason.LENGTH
            num_steps = driver.post(lambda engine: engine.num_steps).result(LONG)
            assert thread.ident is not None
            clock = time.pthread_getcpuclockid(thread.ident)
            before = time.clock_gettime(clock)
            time.sleep(0.3)
            assert time.clock_gettime(clock) - before < 0.01
            assert driver.post(lambda engine: engine.num_steps).result(LONG) == num_steps

    def test_keeps_other_threads_from_turns(self) -> None:
        driver = EngineDriver(engine_with())
        with running(driver):
            driver.post(lambda _: None).result(LONG)
            for use in (driver.step, lambda: driver.add(request("B")), lambda: driver.pin([1])):
                with pytest.raises(EngineError, match=r"another thread .* post\(\)"):
                    use()

    def test_says_why_it_ends_to_all_that_wait(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(engine_driver, "STALL_SECONDS", 0.0)
        engine = engine_with()
        plan_nothing(engine, monkeypatch)
        driver, heard = EngineDriver(engine), Heard()
        with running(driver) as thread:
            driver.submit(request("A"), listener=heard)
            assert heard.finish_reason is FinishReason.ABORT
            reason = heard.groups[-1].sequences[0].error
            assert "has planned nothing" in (reason or "")
            thread.join(LONG)
            assert "has planned nothing" in str(thread.error)  # type: ignore[attr-defined]
            with pytest.raises(EngineError, match=r"has stopped: .* has planned nothing"):
                driver.submit(request("B"), listener=Heard()).result(LONG)
            with pytest.raises(EngineError, match="has stopped"):
                driver.step()
            driver.abort("A")
        assert driver.engine.kv_cache.num_free == 64

    def test_goes_on_after_a_step_that_failed(self) -> None:
        driver, heard, other = EngineDriver(engine_with()), Heard(), Heard()
        FailingExecutor.install(driver.engine, before=[0])
        with running(driver):
            driver.submit(request("A"), listener=heard)
            assert heard.finish_reason is FinishReason.ERROR
            driver.submit(request("B"), listener=other)
            assert other.finish_reason is FinishReason.LENGTH


class TestListeners:
    def test_that_raise_lose_their_request_and_no_other(self) -> None:
        driver, calls, heard = EngineDriver(engine_with()), list[int](), Heard()

        def broken(group: SequenceGroup) -> None:
            calls.append(len(group.sequences[0].output))
            if calls[-1]:
                raise ValueError("gone")

        driver.submit(request("A", max_tokens=9), listener=broken)
        driver.submit(request("B", max_tokens=3), listener=heard)
        driver.step()
        assert [group.id for group in driver.engine.groups] == ["B"]
        while driver.engine.has_unfinished:
            driver.step()
        assert calls == [0, 1]
        assert heard.lengths == [0, 1, 2, 3]

    def test_may_abort_and_close_from_within_a_step(self) -> None:
        driver, heard = EngineDriver(engine_with()), Heard()

        def impatient(group: SequenceGroup) -> None:
            if group.sequences[0].output:
                driver.abort(group.id)
                driver.close()

        with running(driver) as thread:
            driver.submit(request("A", max_tokens=9), listener=impatient)
            driver.submit(request("B", max_tokens=50), listener=heard)
            assert heard.finish_reason is FinishReason.ABORT
            thread.join(LONG)
        assert driver.engine.kv_cache.num_free == 64


class TestClose:
    def test_tells_listeners_of_unfinished_requests(self) -> None:
        driver, heard = EngineDriver(engine_with()), Heard()
        driver.submit(request("A", max_tokens=9), listener=heard)
        driver.step()
        driver.close()
        assert heard.lengths == [0, 1, 1]
        assert heard.finish_reason is FinishReason.ABORT

    def test_refuses_what_is_in_the_inbox_and_what_comes(self) -> None:
        driver, heard = EngineDriver(engine_with()), Heard()
        waiting: list[Future[Any]] = []
        with occupied(driver):
            waiting.append(driver.submit(request("A"), listener=heard))
            closing = Thread(target=driver.close)
            closing.start()
            while driver._end is None:
                time.sleep(0.001)
            assert not driver._closed.is_set(), "the other thread still uses the engine"
        closing.join(LONG)
        assert driver._closed.is_set()
        waiting.append(driver.post(lambda engine: engine.metrics))
        for future in waiting:
            with pytest.raises(EngineError, match="closed"):
                future.result(LONG)
        assert heard.groups == []
        driver.abort("A")

    def test_ends_a_run_that_sleeps_or_steps(self) -> None:
        for num_tokens in (0, 3900):
            driver, heard = EngineDriver(engine_with(max_model_len=4000, num_blocks=1000)), Heard()
            with running(driver):
                if num_tokens:
                    driver.submit(request("A", max_tokens=num_tokens), listener=heard).result(LONG)
                driver.close()
                assert driver._closed.is_set()
                if num_tokens:
                    assert heard.finish_reason is FinishReason.ABORT

    def test_may_come_before_the_run(self) -> None:
        driver = EngineDriver(engine_with())
        driver.close()
        driver.run()
        with pytest.raises(EngineError, match="is closed"):
            driver.step()

    def test_waits_for_another_close(self) -> None:
        driver = EngineDriver(engine_with())
        closers = [Thread(target=driver.close) for _ in range(4)]
        with occupied(driver):
            for closer in closers:
                closer.start()
        for closer in closers:
            closer.join(LONG)
        assert driver._closed.is_set()
        assert driver._turn is None


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
    with pytest.raises(
        EngineError, match=r"TokenBudgetScheduler has planned nothing .* 1 requests"
    ):
        while True:
            driver.step()
    assert expected < engine.clock() < expected + 0.1


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


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers here")
class TestCtrlC:
    """A signal comes at whatever place, and leaves the engine to the next one that asks for it."""

    def test_leaves_no_turn_behind(self) -> None:
        random, driver = Random(0), EngineDriver(engine_with(num_blocks=200))
        may_come = False

        def interrupt(*_: object) -> None:
            if may_come:
                raise KeyboardInterrupt

        was = signal.signal(signal.SIGALRM, interrupt)
        try:
            for number in range(150):
                may_come = True
                try:
                    # again after a second: Python drops what is raised while it collects garbage
                    signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-5, 4e-4), 1.0)
                    while True:
                        self._use(driver, str(number))
                except KeyboardInterrupt:
                    may_come = False
                    assert driver._turn is None, (
                        f"interrupt {number}, whose traceback is still held"
                    )
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, was)
        other = Thread(target=driver.step)
        other.start()
        other.join(LONG)
        assert not other.is_alive()
        driver.close()

    def _use(self, driver: EngineDriver, name: str) -> None:
        driver.post(lambda engine: engine.metrics)
        driver.abort(name)
        driver.add(request(name, max_tokens=2))
        while driver.engine.has_unfinished:
            driver.step()
