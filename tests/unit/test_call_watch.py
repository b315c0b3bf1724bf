"""A call of a component that does not return ends the test, and says where it is."""

from __future__ import annotations

import signal
import subprocess
import sys
from threading import Event, Thread
from time import monotonic, thread_time
from typing import Any

import psutil
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from paged_core.plugins.component import Component
from paged_core.plugins.registry import Registry
from paged_testing import (
    EvictorConformance,
    VictimConformance,
    Workload,
    build_memory_engine,
    call_watch,
    registry_with,
    serve,
    simple_request,
)
from paged_testing.call_watch import CallDoesNotReturn, watched_calls
from paged_testing.engines import first_party
from paged_testing.properties import MAX_RUNS
from unit import faulty_evictors, faulty_schedulers
from unit.faulty_settings import FaultySettings, FaultyTokenBudgetSettings, registry_of

FORKED = Workload(((0, simple_request("A", 5, 20, n=3)), (0, simple_request("B", 3, 4))))


class HangingEvictor(EvictorConformance):
    """One whose ``evict`` computes for ever."""

    component = "faulty"

    def make_registry(self) -> Registry:
        return registry_of("evictor", faulty_evictors.HangingEvictor)


class TestWatchedCalls:
    def test_says_which_call_is_where_and_what_was_waiting_for_what(self) -> None:
        made = faulty_schedulers.CirclingScheduler  # type: ignore[attr-defined]
        registry = registry_of("scheduler", made, FaultyTokenBudgetSettings)
        with pytest.raises(CallDoesNotReturn) as raised, watched_calls(0.5):
            serve(build_memory_engine(registry, scheduler="faulty", num_blocks=6), FORKED)
        assert "Engine.step() has not returned" in str(raised.value)
        assert "Circling.preempt_for()" in str(raised.value)
        assert "faulty_schedulers.py" in str(raised.value)
        (note,) = raised.value.__notes__
        assert note.startswith("in step ")
        assert "A (" in note
        assert "more for its next; " in note
        assert "of 6 blocks are free" in note

    @pytest.mark.parametrize(("share", "times"), [(1.0, 1), (0.0, 8)], ids=["idle", "busy"])
    def test_a_call_that_waits_is_found_too(
        self, share: float, times: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Later on a busy machine: what it waits for, such as the compiler of another process that
        holds a lock, may be waiting for a processor."""
        idle = share * (psutil.cpu_count() or 1)
        monkeypatch.setattr(call_watch, "_idle_seconds", lambda: idle * monotonic())
        engine = build_memory_engine()
        engine.executor.submit = lambda step: Event().wait()  # type: ignore[method-assign]
        started = monotonic()
        with pytest.raises(CallDoesNotReturn, match="step"), watched_calls(0.1):
            serve(engine, FORKED)
        assert monotonic() - started > times * 4 * 0.1

    def test_a_call_may_wait_longer_while_a_child_process_computes(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def compute() -> None:
            with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as child:
                try:
                    child.wait()
                finally:
                    child.kill()

        idle = psutil.cpu_count() or 1
        monkeypatch.setattr(call_watch, "_idle_seconds", lambda: idle * monotonic())
        engine = build_memory_engine()
        engine.executor.submit = lambda step: compute()  # type: ignore[assignment, return-value]
        started = monotonic()
        with pytest.raises(CallDoesNotReturn, match="step"), watched_calls(0.1):
            serve(engine, FORKED)
        assert monotonic() - started > 8 * 4 * 0.1

    def test_a_look_that_takes_longer_than_a_tick_is_not_itself_looked_at(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It takes long on a busy machine to list child processes; the component waits for none."""
        looks, spent = [], 0.3

        def list_slowly() -> float:
            looks.append(1)
            signal.raise_signal(signal.SIGALRM)
            until = thread_time() + spent
            while thread_time() < until:
                pass
            signal.raise_signal(signal.SIGALRM)
            return 0.0

        monkeypatch.setattr(call_watch, "_seconds_of_children", list_slowly)
        idle = psutil.cpu_count() or 1
        monkeypatch.setattr(call_watch, "_idle_seconds", lambda: idle * monotonic())
        engine = build_memory_engine()
        engine.executor.submit = lambda step: Event().wait()  # type: ignore[method-assign]
        with pytest.raises(CallDoesNotReturn, match="step") as raised, watched_calls(2 * spent):
            serve(engine, FORKED)
        assert len(looks) > 3, "the looks took longer than a call may compute"
        assert "Event.wait()" in str(raised.value)
        assert "list_slowly" not in str(raised.value)

    def test_a_component_that_catches_all_exceptions_does_not_catch_it(self) -> None:
        assert not issubclass(CallDoesNotReturn, Exception)

    def test_a_long_test_of_short_calls_goes_on(self) -> None:
        started = monotonic()
        with watched_calls(0.05):
            while monotonic() - started < 1:
                serve(build_memory_engine(), Workload(((0, simple_request("A", 3, 2)),)))

    def test_the_timer_of_another_goes_on_afterwards(self) -> None:
        rung = []
        before = signal.signal(signal.SIGALRM, lambda *_: rung.append(1))
        signal.setitimer(signal.ITIMER_REAL, 100)
        try:
            with watched_calls(1):
                assert signal.getitimer(signal.ITIMER_REAL)[0] < 1
            assert 90 < signal.getitimer(signal.ITIMER_REAL)[0] <= 100
            signal.raise_signal(signal.SIGALRM)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        assert rung == [1]

    def test_nothing_is_watched_in_another_thread(self) -> None:
        done = []

        def run() -> None:
            with watched_calls(0.01):
                done.append(signal.getitimer(signal.ITIMER_REAL))

        thread = Thread(target=run)
        thread.start()
        thread.join()
        assert done == [(0.0, 0.0)]


class TestAConformanceClass:
    def test_gives_less_time_once_a_call_has_hung(self) -> None:
        class Kit(HangingEvictor):
            max_seconds = 0.6

        for _ in range(2):
            kit = Kit()
            with pytest.raises(CallDoesNotReturn, match=r"HangingEvictor\.evict"), kit.watched():
                kit.test_evicts_every_block_once()
        assert Kit._has_hung
        assert not HangingEvictor._has_hung

    def test_a_hang_is_not_shrunk(self) -> None:
        asked = []

        def hangs(number: int) -> None:
            asked.append(number)
            raise CallDoesNotReturn("evict() has not returned")

        with pytest.raises(CallDoesNotReturn):
            HangingEvictor().check(hangs, st.integers())
        assert len(asked) == 1

    def test_other_failures_are_shrunk_a_little(self) -> None:
        asked = []

        def fails(numbers: list[int]) -> None:
            asked.append(numbers)
            assert sum(numbers) < 100, "the sum is too large"

        with pytest.raises(AssertionError, match="the sum is too large"):
            HangingEvictor().check(fails, st.lists(st.integers(0, 50), min_size=1))
        first = next(place for place, numbers in enumerate(asked) if sum(numbers) >= 100)
        assert len(asked) - first <= 2 * MAX_RUNS
        assert sum(asked[-1]) >= 100


@pytest.mark.parametrize("profile", ["exploring", "repeatable"])
def test_a_busy_machine_fails_no_property(profile: str) -> None:
    chosen = settings.get_profile(profile)
    assert chosen.deadline is None
    assert HealthCheck.too_slow in chosen.suppress_health_check


def test_a_workload_is_printed_in_lines() -> None:
    requests = (0, simple_request("A", 9, 5)), (3, simple_request("B", (0, 1, 1), 5, n=2))
    assert repr(Workload(requests, ((4, "A"),))).split("\n    ") == [
        "",
        "0: A(prompt of 9, max_tokens=5)",
        "3: B(prompt 011, n=2, max_tokens=5)",
        "4: abort A",
    ]


def test_only_first_party_components_stand_beside_the_one_under_test() -> None:
    """Others that are installed, even under a name of ours, are not drawn and are no default."""
    stranger = Component("evictor", FaultySettings, "unit.faulty_evictors:LeakyEvictor")
    wanted = Component("victim", FaultySettings, "unit.faulty_policies:OldestVictim")
    installed = registry_with().extended(stranger, plugin="stranger").extended(wanted)
    names = set(first_party(installed).of("evictor"))
    assert names == set(registry_with().of("evictor")) - {"faulty"}
    assert "faulty" not in first_party(installed).of("victim")

    class Kit(VictimConformance):
        component = "faulty"

        def make_registry(self) -> Registry:
            return installed

    assert "faulty" in Kit().registry.of("victim")
    assert "faulty" not in Kit().registry.of("evictor")

    def draws(values: dict[str, Any]) -> None:
        assert values["evictor"]["name"] != "faulty"
        assert values["victim"]["name"] == "faulty"

    Kit().check(draws, Kit().engine_values())
