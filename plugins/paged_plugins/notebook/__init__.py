"""Studies and runs from Python: as pandas frames, and as pictures that a notebook shows."""

import base64
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from paged_core.errors import SettingsError
from paged_core.plugins.registry import Registry
from paged_core.settings.schema import settings_class
from paged_plugins.lab.commands.load import fit
from paged_plugins.lab.load.remedies import with_remedies
from paged_plugins.lab.measures import SHOWN
from paged_plugins.lab.report import html
from paged_plugins.lab.results.folder import new_manifest
from paged_plugins.lab.results.results import run_study
from paged_plugins.lab.runs.run_record import RunRecord
from paged_plugins.lab.runs.run_workload import run_workload
from paged_plugins.lab.statistics.comparison import Comparison
from paged_plugins.lab.study.arms import layer
from paged_plugins.lab.study.study import read_study
from paged_plugins.lab.tasks.pool import num_workers, open_runner
from paged_plugins.substitutes import passing, substituted
from paged_plugins.workloads.named import workload_spec

_PAGE = files("paged_plugins.server").joinpath("page", "static")
"""Files of the page of a server, which draw a run here, too."""
_MODULES = ("api", "colours", "blocks", "requests", "timeline", "live")


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
        return _frame(rows)

    def _repr_html_(self) -> str:
        return _framed(html(self), 640)


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


@dataclass(frozen=True)
class WatchedRun:
    """A run that a notebook shows step by step, as the page of a server shows what it does."""

    record: RunRecord
    reports: list[dict[str, Any]]
    """Reports of ``live_view`` after each step that was watched, the first one whole."""

    def frame(self) -> Any:
        """Return a pandas frame of the requests, times in seconds; SettingsError without pandas."""
        return _frame(map(asdict, self.record.requests))

    def _repr_html_(self) -> str:
        def read(name: str) -> str:
            return _PAGE.joinpath(name).read_text("utf-8").replace('"/page/', '"page/')

        def url(name: str) -> str:
            code = base64.b64encode(read(name).encode()).decode()
            return f"data:text/javascript;base64,{code}"

        parts = {
            "STYLE": read("page.css"),
            "MODULES": json.dumps({f"page/{each}.js": url(f"{each}.js") for each in _MODULES}),
            "ENGINE": read("index.html").partition('<section id="engine"')[2].partition("</sec")[0],
            "REPORTS": json.dumps(self.reports).replace("<", "\\u003c"),
        }
        page = files(__name__).joinpath("replay.html").read_text("utf-8")
        return _framed(re.sub(r"{{(\w+)}}", lambda name: parts[name[1]], page), 760)


def watch(
    workload: str,
    settings: Mapping[str, Any],
    registry: Registry | None = None,
    *,
    seed: int = 0,
    steps: range = range(400),
) -> WatchedRun:
    """Run a workload once, on a virtual clock unless the settings name an executor.

    Args:
        workload: its name or its file.
        settings: by key, which may be dotted.
        registry: the components; ``None``: what is installed.
        steps: the numbers of those to look at.

    Raises:
        SettingsError: the settings or the workload are wrong.
    """
    registry = registry or Registry.discover()
    given = {"executor": "simulated", **settings, "observers": ["live_view"]}
    made, _ = settings_class(registry).from_layers([layer(given, "settings")])
    reports: list[dict[str, Any]] = []

    def kept(view: Any, options: Any, context: Any) -> Any:
        class Keep:
            def on_step(self, _: None, step: Any) -> None:
                if step.number in steps:
                    reports.append(view.report(reports[-1]["cursor"] if reports else 0))

        return passing(view, "observers", registry, Keep())

    watching = substituted(registry, {"observers": kept})
    return WatchedRun(run_workload(made, watching, workload_spec(workload).build(), seed), reports)


def _frame(rows: Iterable[Any]) -> Any:
    try:
        from pandas import DataFrame
    except ImportError:
        raise SettingsError(
            "a frame needs pandas, which is not installed: `pip install 'paged-core[lab]'`"
        ) from None
    return DataFrame(list(rows))


def _framed(page: str, height: int) -> str:
    """Return a page as an element of another one, which shares no style with it."""
    style = f"width: 100%; height: {height}px; border: 0"
    return f'<iframe style="{style}" srcdoc="{escape(page)}"></iframe>'
