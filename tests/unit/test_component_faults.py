"""Components that raise: the error names them and the place, and the engine serves what follows as
one without faults does."""

from __future__ import annotations

import re
from typing import Any

import pytest
from structlog.testing import capture_logs

from paged_backends.executors.memory import MemoryExecutor
from paged_core import LLM
from paged_core.errors import PluginError
from paged_core.ids import BlockId
from paged_core.request import FinishReason
from paged_core.requests.pins import PinState
from paged_core.sequence import SequenceGroup
from paged_core.step import StepResult
from paged_policies.allocators.hash_cached import HashCachedAllocator
from paged_policies.orders.fcfs import FcfsOrder
from paged_testing import build_memory_engine
from paged_testing.doubles import PassingExecutor
from paged_testing.served import check_said
from unit.engines import Recorder, finish, without_place
from unit.faulty_settings import (
    FaultyHashCachedSettings,
    registry_of,
)
from unit.switched_components import Switch, ask, engine_of, serves_as_ever, switched_off  # noqa: F401

pytestmark = pytest.mark.usefixtures("switched_off")


class RaisingFree(HashCachedAllocator):
    def free(self, blocks: Any, /) -> None:
        if Switch.take():
            raise ValueError("no")
        super().free(blocks)


class RaisingKey(FcfsOrder):
    def key(self, group: SequenceGroup, now: float, /) -> Any:
        if Switch.wrong == group.request.tenant:
            raise ValueError("no")
        return group.request.deadline or super().key(group, now)


def test_what_a_failed_step_cached_is_not_found() -> None:
    engine = engine_of("block_allocator", RaisingFree)
    first = engine.add(ask("A"))
    engine.step()
    Switch.wrong = True
    with capture_logs() as logs:
        finish(engine)
    reason = "block_allocator 'faulty' raised ValueError: no"
    restarted = [log for log in logs if log["event"] == "policies_restarted"]
    assert [(without_place(log["reason"]), log["prefix_cache"]) for log in restarted] == [
        (reason, "cleared")
    ]
    assert first.finished
    again = engine.add(ask("B"))
    finish(engine)
    assert again.num_cached == 0
    serves_as_ever(engine)


class Lost(HashCachedAllocator):
    """Raises an error without words, two calls deep in code of its own."""

    def allocate(self, count: int, /) -> list[BlockId]:
        if Switch.take():
            self._pick()
        return super().allocate(count)

    def _pick(self) -> None:
        next(iter(()))


def test_where_a_component_raised_is_in_the_error_and_the_traceback_in_the_log() -> None:
    engine = engine_of("block_allocator", Lost)
    group = engine.add(ask("A"))
    Switch.wrong = True
    with capture_logs() as logs:
        finish(engine)
    called, raised = (each.__code__.co_firstlineno for each in (Lost.allocate, Lost._pick))
    assert group.sequences[0].error == (
        f"block_allocator 'faulty' raised StopIteration (at {__file__}:{called + 2} in allocate > "
        f"{__file__}:{raised + 1} in _pick)"
    )
    (log,) = (log for log in logs if "stack" in log)
    assert (log["event"], log["log_level"]) == ("policies_restarted", "error")
    assert "in _step" in log["stack"]
    assert log["stack"].endswith("next(iter(()))\nStopIteration")


def test_where_code_of_ours_raised_is_the_innermost_frame() -> None:
    engine = build_memory_engine(registry_of("block_allocator", Lost, FaultyHashCachedSettings))
    group = engine.add(ask("A"))
    vars(engine.scheduler).clear()
    engine.step()
    error = group.sequences[0].error or ""
    assert error.startswith("scheduler 'token_budget' raised AttributeError: ")
    assert re.search(r"\(at \S+/paged_policies/schedulers/\S+\.py:\d+ in \w+\)$", error)


def test_all_requests_of_an_engine_that_starts_anew_end_with_the_reason() -> None:
    engine = engine_of("block_allocator", RaisingFree)
    groups = [engine.add(ask("A", 9)), engine.add(ask("B", 12))]
    engine.step()
    Switch.wrong = True
    engine.abort("A")
    assert {g.sequences[0].finish_reason for g in groups} == {
        FinishReason.ABORT,
        FinishReason.ERROR,
    }
    assert (
        without_place(groups[1].sequences[0].error)
        == "block_allocator 'faulty' raised ValueError: no"
    )
    assert engine.step().finished == groups
    serves_as_ever(engine)


def test_pins_end_where_the_cache_is_cleared() -> None:
    engine = engine_of("block_allocator", RaisingFree)
    pin = engine.pin(range(12))
    finish(engine)
    assert pin.state is PinState.HELD
    engine.add(ask("A"))
    engine.step()
    Switch.wrong = True
    engine.abort("A")
    assert (pin.state, pin.blocks) == (PinState.ENDED, [])
    assert without_place(pin.end_reason) == "block_allocator 'faulty' raised ValueError: no"
    serves_as_ever(engine)


class Unmakeable(HashCachedAllocator):
    def __init__(self, *args: Any) -> None:
        if Switch.wrong:
            raise OSError("no such file")
        super().__init__(*args)

    def allocate(self, count: int, /) -> list[BlockId]:
        if Switch.wrong:
            raise ValueError("no")
        return super().allocate(count)


def test_an_engine_whose_policies_cannot_be_made_anew_refuses_until_they_can() -> None:
    engine = engine_of("block_allocator", Unmakeable)
    group = engine.add(ask("A"))
    Switch.wrong = True
    for _ in range(2):
        with pytest.raises(OSError, match="no such file"):
            engine.step()
    assert (
        without_place(group.sequences[0].error) == "block_allocator 'faulty' raised ValueError: no"
    )
    with pytest.raises(OSError, match="no such file"):
        engine.add(ask("B"))
    Switch.wrong = None
    serves_as_ever(engine)
    engine.close()


# ---------------------------------------------------------------------- entering is all or nothing


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"tenant": "poison"}, "queue_order 'faulty' raised ValueError: no"),
        (
            {"deadline": "soon"},
            "queue_order 'faulty' returned keys that cannot be compared: '<' not supported between",
        ),
    ],
)
def test_a_request_that_cannot_be_queued_is_not_added(fields: dict[str, Any], reason: str) -> None:
    Switch.wrong = "poison"
    engine = engine_of("queue_order", RaisingKey)
    other = engine.add(ask("A", deadline=5.0))
    bad = ask("B")
    for name, value in fields.items():
        object.__setattr__(bad, name, value)
    with pytest.raises(PluginError, match=f"request 'B' was not added: .*{reason}"):
        engine.add(bad)
    assert [group.id for group in engine.groups] == ["A"]
    assert len(engine.scheduler) == 1
    same_id = engine.add(ask("B"))
    finish(engine)
    for group in (other, same_id):
        check_said(engine, group)
        assert group.sequences[0].finish_reason is FinishReason.LENGTH
    serves_as_ever(engine)
    engine.close()


def test_ctrl_c_is_no_fault_with_a_traceback() -> None:
    engine = engine_of("block_allocator", RaisingFree)
    engine.add(ask("A"))

    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    with (
        pytest.MonkeyPatch.context() as patch,
        capture_logs() as logs,
        pytest.raises(KeyboardInterrupt),
    ):
        patch.setattr(engine.scheduler, "schedule", interrupt)
        engine.step()
    assert all(log.get("stack") is None for log in logs)


class BadStart(MemoryExecutor):
    def start(self) -> Any:
        return self.no_such_thing  # type: ignore[attr-defined]


def test_what_an_executor_raises_at_its_start_names_it() -> None:
    registry = registry_of("executor", BadStart)
    with pytest.raises(PluginError, match=r"executor 'faulty'.* could not be started: .*BadStart"):
        LLM(executor="faulty", registry=registry)


# ---------------------------------------------------------------------- closing


class StubbornExecutor(PassingExecutor):
    """Passes on, and cannot be closed or collected."""

    def collect(self, handle: Any, /) -> StepResult:
        raise ValueError("lost")

    def close(self) -> None:
        super().close()
        raise OSError("busy")


def test_closing_closes_everything_and_then_raises() -> None:
    observer = Recorder()
    engine = build_memory_engine(observers=[observer], async_scheduling=True)
    engine.add(ask("A"))
    engine.executor = StubbornExecutor(engine.executor)
    engine.step()
    with pytest.raises(OSError, match="busy"):
        engine.close()
    assert observer.closed
    assert not list(engine.groups)
