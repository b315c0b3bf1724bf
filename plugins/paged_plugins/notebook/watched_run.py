"""A run that is watched step by step."""

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.resources import files
from typing import Any

from paged_core.plugins.registry import Registry
from paged_core.settings.schema import settings_class
from paged_plugins.lab.runs.run_record import RunRecord
from paged_plugins.lab.runs.run_workload import run_workload
from paged_plugins.lab.study.arms import layer
from paged_plugins.notebook.display import frame, framed
from paged_plugins.substitutes import passing, substituted
from paged_plugins.workloads.named import workload_spec

_PAGE = files("paged_plugins.server").joinpath("page", "static")
"""Files of the page of a server, which draw a run here, too."""
_MODULES = ("api", "colours", "blocks", "requests", "timeline", "live")


@dataclass(frozen=True)
class WatchedRun:
    """A run that a notebook shows step by step, as the page of a server shows what it does."""

    record: RunRecord
    reports: list[dict[str, Any]]
    """Reports of ``live_view`` after each step that was watched, the first one whole."""

    def frame(self) -> Any:
        """Return a pandas frame of the requests, times in seconds; SettingsError without pandas."""
        return frame(map(asdict, self.record.requests))

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
        page = files(__package__).joinpath("replay.html").read_text("utf-8")
        return framed(re.sub(r"{{(\w+)}}", lambda name: parts[name[1]], page), 760)


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
