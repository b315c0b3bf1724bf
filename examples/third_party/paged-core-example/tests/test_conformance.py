"""The contract of every scheduler, evictor and observer."""

from pathlib import Path
from typing import Any, ClassVar

from paged_testing import EvictorConformance, ObserverConformance, SchedulerConformance


class TestRoundRobin(SchedulerConformance):
    component = "round_robin"


class TestRoundRobinOfSingleTokens(SchedulerConformance):
    component: ClassVar = {"name": "round_robin", "quantum": 1, "max_num_batched_tokens": 3}


class TestDearest(EvictorConformance):
    component = "dearest"


class TestUtilisationCsv(ObserverConformance):
    component = "utilisation_csv"

    def table(self, folder: Path) -> dict[str, Any]:
        return {"name": "utilisation_csv", "path": str(folder / "utilisation.csv"), "every": 2}
