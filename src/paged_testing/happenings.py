"""Ways that requests and engines may go, beside being served, of which observers hear."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from unittest.mock import patch

from paged_core.engine.engine import Engine
from paged_core.errors import AdmissionRefused, ExecutorLost, PluginError, RequestError
from paged_core.interfaces.admission import Admission, Decision, Held, Load, Refused
from paged_core.request import Request
from paged_testing.engines import serve
from paged_testing.workloads import Workload, simple_request


class _Decides(Admission):
    def __init__(self, decision: Decision) -> None:
        self._decision = decision

    def decide(self, request: Request, load: Load, now: float, /) -> Decision:
        return self._decision


def deciding(engine: Engine, decision: Decision) -> AbstractContextManager[object]:
    """Let the admission of an engine decide the same over all requests."""
    return patch.object(engine, "_admission", _Decides(decision))


def _refused(engine: Engine, name: str) -> None:
    with deciding(engine, Refused("all are")), suppress(AdmissionRefused):
        engine.add(simple_request(name, 5, 3))


def _held_back(engine: Engine, name: str) -> None:
    with deciding(engine, Held(engine.clock() + 3)):
        for each in (name, f"{name}B"):
            engine.add(simple_request(each, 5, 3))
    engine.step()
    engine.abort(name)


def _not_added(engine: Engine, name: str) -> None:
    broken = patch.object(engine.scheduler, "add", side_effect=KeyError("on purpose"))
    with broken, suppress(PluginError):
        engine.add(simple_request(name, 5, 3))


def _can_never_run(engine: Engine, name: str) -> None:
    with suppress(RequestError):
        engine.add(simple_request(name, 1000, 3))


def _executor_lost(engine: Engine, name: str) -> None:
    with suppress(AdmissionRefused):
        engine.add(simple_request(name, 5, 3))
    with patch.object(engine.executor, "collect", side_effect=ExecutorLost("on purpose")):
        engine.step()


def _policies_made_anew(engine: Engine, name: str) -> None:
    with patch.object(type(engine.scheduler), "schedule", side_effect=KeyError("planned")):
        engine.step()


def _pinned(engine: Engine, _: str) -> None:
    pin = engine.pin(tuple(range(16)))
    serve(engine, Workload(()))
    engine.release(pin)
    engine.release(engine.pin(tuple(range(30, 46))))
    engine.reset_prefix_cache()


def _stop_check_raises(engine: Engine, name: str) -> None:
    engine.add(simple_request(name, 5, 3), lambda sequence: str(1 // 0))


HAPPENINGS: Mapping[str, Callable[[Engine, str], None]] = {
    "a request is refused": _refused,
    "requests are held back": _held_back,
    "a request cannot be added": _not_added,
    "a request can never run": _can_never_run,
    "the executor is lost": _executor_lost,
    "a policy raises, and the cache is cleared": _policies_made_anew,
    "a prefix is pinned": _pinned,
    "code of a request raises": _stop_check_raises,
}
"""Events by name, and functions that let them happen in an engine, to a request of an id."""


def happens_in_turn(engine: Engine, number: int) -> None:
    """Let requests of a number go one of the ways that may leave something of them behind."""
    ways = (_refused, _held_back, _stop_check_raises)
    ways[number % len(ways)](engine, f"on its way {number}")
    serve(engine, Workload(()))
