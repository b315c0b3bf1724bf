"""Whatever raises wherever: what comes after has the text that it has in an engine without faults.

A real component of any slot raises in one call: before or after it has done what it was asked for,
an exception or Ctrl-C, planning ahead or not. Requests end with an error that names the component;
no block leaks; the same prompts, asked for again, are answered as ever; the executor is closed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st
from structlog.testing import capture_logs

from paged_core.engine.engine import Engine
from paged_core.errors import PluginError, RequestError
from paged_core.interfaces.observer import Observer
from paged_core.request import FinishReason, Request
from paged_testing.doubles import BackgroundExecutor
from paged_testing.engines import build_memory_engine, engine_settings
from paged_testing.served import check_nothing_leaked, check_said
from paged_testing.workloads import Workload, workloads
from properties.fault_injection import (
    InjectedFault,
    InjectedInterrupt,
    Injector,
    Site,
    watched,
)
from properties.profile import Length, lengths
from unit.engines import REGISTRY

ERRORS = (InjectedFault, InjectedInterrupt)


class _Watcher(Observer):
    """Listens to everything."""

    def on_step(self, step: Any, /) -> None:
        pass

    def on_request(self, group: Any, event: str, /) -> None:
        pass

    def on_block(self, event: Any, /) -> None:
        pass

    def on_cache(self, event: Any, /) -> None:
        pass


def build(injector: Injector, values: dict[str, Any], *, ahead: bool) -> Engine:
    observer = watched(injector, "observers", _Watcher())
    engine = build_memory_engine(REGISTRY, **values, observers=[observer], async_scheduling=ahead)
    if ahead:
        BackgroundExecutor.install(engine)
    return engine


def serve(engine: Engine, workload: Workload, prefix: str) -> tuple[list[Any], list[str]]:
    """Serve a workload through whatever raises; return its groups and all errors."""
    groups, errors, step = [], [], 0
    to_come = [(due, replace(each, id=prefix + each.id)) for due, each in workload.requests]
    while to_come or engine.has_unfinished:
        due_now: list[Request] = [request for due, request in to_come if due <= step]
        to_come = [item for item in to_come if item[0] > step]
        for request in due_now:
            before = {group.id for group in engine.groups}
            try:
                groups.append(engine.add(request))
            except RequestError:
                continue
            except (PluginError, InjectedInterrupt) as error:
                errors.append(str(error))
                held = {group.id for group in engine.groups}
                assert held in (before, set()), f"{request.id} is held although add() raised"
        try:
            for due, request_id in workload.aborts:
                if due == step:
                    engine.abort(prefix + request_id)
            engine.step()
        except InjectedInterrupt as error:
            errors.append(str(error))
        step += 1
        assert step < 1000, "it hangs"
    return groups, errors


def sites(values: dict[str, Any], workload: Workload, *, ahead: bool) -> list[tuple[Site, int]]:
    """Every call that serving a workload makes."""
    injector = Injector()
    with injector.installed():
        engine = build(injector, values, ahead=ahead)
        injector.calls.clear()
        serve(engine, workload, "")
        engine.close()
    return [
        (site, number) for site, count in sorted(injector.calls.items()) for number in range(count)
    ]


def check(values: dict[str, Any], workload: Workload, injector: Injector, *, ahead: bool) -> None:
    with injector.installed(), capture_logs() as logs:
        engine = build(injector, values, ahead=ahead)
        injector.calls.clear()
        groups, errors = serve(engine, workload, "")
        for group in groups:
            assert group.finished
            check_said(engine, group)
            errors += [each.error for each in group.sequences if each.error]
        over = injector.raised
        for group in serve(engine, workload, "again-")[0]:
            reasons = {sequence.finish_reason for sequence in group.sequences}
            assert not over or FinishReason.ERROR not in reasons, group.sequences[0].error
            check_said(engine, group)
        check_nothing_leaked(engine)
        try:
            engine.close()
        except ERRORS as error:
            errors.append(str(error))
    assert "executor" in injector.closed
    if injector.raised:
        site, error = injector._site, injector._error
        assert site is not None
        if site[0] == "observers" and error is InjectedFault:
            assert any(log["event"] == "observer_dropped" for log in logs)
        elif error is InjectedFault and "close" not in site:
            assert any(
                f"{site[0]} " in text and "injected" in text
                for text in [*errors, *(str(log.get("reason")) for log in logs)]
            ), f"{site} is not named in {errors}"


FAULTS = st.tuples(st.floats(0, 1, exclude_max=True), st.booleans(), st.sampled_from(ERRORS))


@lengths(30, 10_000)
def test_what_follows_a_fault_is_served_as_ever(length: Length) -> None:
    def serves(values: dict[str, Any], workload: Workload, fault: Any, ahead: bool) -> None:
        place, after, error = fault
        calls = sites(values, workload, ahead=ahead)
        site, number = calls[int(place * len(calls))]
        check(values, workload, Injector(site, number, after=after, error=error), ahead=ahead)

    served = workloads(9, 3) if length.is_long else workloads(max_aborts=1)
    length.check(serves, engine_settings(REGISTRY), served, FAULTS, st.booleans())
