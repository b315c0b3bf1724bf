"""The contract of every evictor and observer."""

from pathlib import Path
from typing import Any

from paged_testing import EvictorConformance, ObserverConformance


class TestDearest(EvictorConformance):
    component = "dearest"


class TestUtilisationCsv(ObserverConformance):
    component = "utilisation_csv"

    def table(self, folder: Path) -> dict[str, Any]:
        return {"name": "utilisation_csv", "path": str(folder / "utilisation.csv"), "every": 2}
