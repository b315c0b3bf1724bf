"""Studies from Python, and what came of them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from paged_core.plugins.registry import Registry
from paged_plugins.lab.commands.load import fit
from paged_plugins.lab.load.remedies import with_remedies
from paged_plugins.lab.measures import SHOWN
from paged_plugins.lab.report import html
from paged_plugins.lab.results.folder import new_manifest
from paged_plugins.lab.results.results import run_study
from paged_plugins.lab.statistics.comparison import Comparison
from paged_plugins.lab.study.study import read_study
from paged_plugins.lab.tasks.pool import num_workers, open_runner
from paged_plugins.notebook.display import frame, framed


@dataclass(frozen=True)
class ComparedStudy(Comparison):
    """A comparison that a notebook shows as its report."""

    def frame(self, of: str = "runs") -> Any:
        """Return a pandas frame; SettingsError without pandas.

        Args:
            of: ``runs``, with ``saturation`` and a column for each measure; or ``differences`` or
                ``asked``, with the keys of ``paged-core compare --json``.
        """
        rows = self.document()[of]
        for row in rows if of == "runs" else ():
            row["saturation"] = row["saturation"] and row["saturation"]["label"]
            row |= row.pop("measures")
        return frame(rows)

    def _repr_html_(self) -> str:
        return framed(html(self), 640)


def compare(
    study: Path | Mapping[str, Any],
    registry: Registry | None = None,
    measures: list[str] | None = None,
    workers: int | None = None,
) -> ComparedStudy:
    """Run a study: every arm on every workload with every seed, and count what was asked.

    Args:
        study: its file, or the content of one: ``base``, ``axes``, ``workloads``, ...
        registry: the components; ``None``: what is installed.
        measures: names of those to compare; ``None``: those that are shown by default.
        workers: runs at a time; ``None``: one for each core.

    Raises:
        SettingsError: the study is wrong; the message says where.
    """
    registry = registry or Registry.discover()
    path, text = (study, None) if isinstance(study, Path) else (Path("study"), yaml.dump({**study}))
    planned = fit(read_study(path, registry, text), registry, workers=workers)
    planned = planned if planned.is_real else planned.watched(registry)
    count = num_workers(len(planned), workers, is_real=planned.is_real)
    with open_runner(registry, workers=count) as runner:
        results = with_remedies(planned, run_study(planned, runner, keeps_records=True), runner)
    manifest = new_manifest(planned, registry).model_dump(mode="json")
    return ComparedStudy.of(replace(results, manifest=manifest), measures or SHOWN)
