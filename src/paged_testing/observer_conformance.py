"""What an observer must do: watch, and change nothing."""

from __future__ import annotations

from typing import ClassVar

from paged_testing.engine_settings import engine_settings
from paged_testing.observer_cases import ObserverCases
from paged_testing.workload import workloads


class ObserverConformance(ObserverCases):
    """Subclass it for an observer. Override :meth:`table` if its options name files::

    class TestMyLog(ObserverConformance):
        component = "my_log"

        def table(self, folder):
            return {"name": "my_log", "path": str(folder / "log")}
    """

    max_examples: ClassVar[int] = 20

    def test_handles_every_event_without_raising(self) -> None:
        self.check(self.check_handles, engine_settings(self.registry), workloads())

    def test_changes_nothing(self) -> None:
        self.check(self.check_changes_nothing, engine_settings(self.registry), workloads())
