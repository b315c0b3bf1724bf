"""Reads a folder of results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from paged_core.errors import SettingsError
from paged_core.settings.documents import read_text
from paged_plugins.lab.measures import MEASURES
from paged_plugins.lab.results.folder import MANIFEST, MAX_SIZE, Manifest, RunEntry
from paged_plugins.lab.results.results import Results, RunFacts, RunResult
from paged_plugins.lab.results.store import RUNS
from paged_plugins.lab.runs.run_record import RunRecord
from paged_plugins.lab.study.study import Strict

_MOST = 1e21
"""Largest value of a measure, which none is near."""
_Read = TypeVar("_Read")


class _Measured(Strict):
    """A row of the table of runs."""

    arm: str
    workload: str
    seed: int
    measure: str
    value: Annotated[float, Field(ge=0, le=_MOST)]


def load_results(folder: Path) -> Results:
    """Return the results in a folder that ``paged-core lab run`` has written.

    Raises:
        SettingsError: they are missing, unfinished or damaged; the message says what to do.
    """
    manifest = _read(folder / MANIFEST, TypeAdapter(Manifest))
    if manifest.finished is None:
        raise SettingsError(
            f"the runs in {folder} are not finished; resume them with `{manifest.command} "
            f"--output {folder}`"
        )
    rows = _read(folder / RUNS, TypeAdapter(list[_Measured]))
    entries: dict[Any, RunEntry] = {run.place: run for run in manifest.runs}
    labels = [arm.label for arm in manifest.arms]
    names = [str(workload.get("name", "")) for workload in manifest.workloads]
    measured: dict[tuple[str, str, int], dict[str, float]] = {}
    for row in rows:
        if row.arm not in labels or row.workload not in names or row.measure not in MEASURES:
            raise SettingsError(f"{folder / RUNS} is damaged: {MANIFEST} knows nothing of {row}")
        measured.setdefault((row.arm, row.workload, row.seed), {})[row.measure] = row.value

    def record(*place: Any) -> RunRecord | None:
        entry = entries.get(place)
        return entry.file(folder).read() if entry and entry.file(folder).path.is_file() else None

    return Results(
        arms=manifest.arms,
        workloads=names,
        seeds=manifest.seeds,
        runs=[
            RunResult(*place, found, entries.get(place, RunFacts()))
            for place, found in measured.items()
        ],
        problems={run.place: run.problem for run in manifest.runs if run.problem is not None},
        slo=manifest.slo,
        manifest=manifest.model_dump(mode="json"),
        num_replicas=manifest.replicas,
        is_exact=manifest.is_exact,
        chosen=manifest.chosen,
        record=record,
    )


def _read(path: Path, kind: TypeAdapter[_Read]) -> _Read:
    try:
        return kind.validate_json(read_text(path, MAX_SIZE))
    except FileNotFoundError:
        raise SettingsError(
            f"there is no {path}; make results with `paged-core lab run FILE --output "
            f"{path.parent}`"
        ) from None
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        where = ".".join(map(str, problem["loc"]))
        what = ": ".join(filter(None, (where, f"{problem['msg']:.200}")))
        raise SettingsError(f"{path} is damaged: {what}; run the study again") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SettingsError(f"cannot read {path}: {reason}") from None
