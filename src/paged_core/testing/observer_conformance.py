"""What an observer must do: watch, and change nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest

from paged_core.engine import Engine
from paged_core.interfaces.observer import BlockEvent, Observer, StepRecord
from paged_core.sequence import SequenceGroup
from paged_core.testing.component_conformance import ComponentConformance
from paged_core.testing.engine_settings import engine_settings
from paged_core.testing.memory_engine import build_memory_engine, serve
from paged_core.testing.text_alone import check_served
from paged_core.testing.workload import Workload, simple_request, workloads


class ObserverConformance(ComponentConformance):
    """Subclass it for an observer. Override :meth:`table` if its options name files::

    class TestMyLog(ObserverConformance):
        component = "my_log"

        def table(self, folder):
            return {"name": "my_log", "path": str(folder / "log")}
    """

    slot: ClassVar[str] = "observers"
    max_examples = 20

    @pytest.fixture(autouse=True)
    def _in_a_folder_of_its_own(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        self._folder = tmp_path

    def table(self, folder: Path) -> dict[str, Any]:
        """The component with its options; it must write its files into ``folder``."""
        return dict(self._table)

    def watched_engine(self, **values: Any) -> tuple[Engine, _Witness]:
        """An engine with the observer, and a witness that gets the same events after it."""
        witness = _Witness()
        engine = build_memory_engine(
            self.registry, observers=[self.table(self._folder), witness], **values
        )
        return engine, witness

    def check_still_there(self, engine: Engine) -> None:
        """Check that no observer was dropped because it raised."""
        left = len(engine.observers)
        assert left == 2, "the observer raised and was dropped; the log says why"

    def test_handles_every_event_without_raising(self) -> None:
        def handles(values: dict[str, Any], workload: Workload) -> None:
            engine, _ = self.watched_engine(**values)
            groups = serve(engine, workload)
            self.check_still_there(engine)
            check_served(engine, workload, groups)
            engine.close()
            self.check_still_there(engine)

        self.check(handles, engine_settings(self.registry), workloads())

    def test_changes_nothing(self) -> None:
        def decides_the_same(values: dict[str, Any], workload: Workload) -> None:
            engine, watched = self.watched_engine(**values)
            serve(engine, workload)
            engine.close()
            alone = _Witness()
            serve(build_memory_engine(self.registry, observers=[alone], **values), workload)
            assert watched.events == alone.events

        self.check(decides_the_same, engine_settings(self.registry), workloads())

    def test_two_engines_have_observers_of_their_own(self) -> None:
        one = self.build_one()
        other = self.build_one()
        assert one is not other
        one.close()
        other.close()

    def test_may_be_closed_without_any_event(self) -> None:
        self.build_one().close()

    def test_handles_a_request_from_start_to_finish(self) -> None:
        engine, witness = self.watched_engine()
        serve(engine, Workload(((0, simple_request("A", 5, 3, n=2)),)))
        self.check_still_there(engine)
        engine.close()
        assert ("A", "finished") in witness.events

    def build_one(self) -> Observer:
        """An observer as an engine would have it."""
        engine, _ = self.watched_engine()
        (mine, *_) = [o for o in engine.observers if not isinstance(o, _Witness)]
        return mine


class _Witness(Observer):
    """Records the events as values that can be compared."""

    def __init__(self) -> None:
        self.events: list[object] = []

    def on_step(self, step: StepRecord, /) -> None:
        self.events.append((step.number, dict(step.scheduled), step.finished, step.free_blocks))

    def on_request(self, group: SequenceGroup, event: str, /) -> None:
        self.events.append((group.id, event))

    def on_block(self, event: BlockEvent, /) -> None:
        self.events.append(event)
