"""Reads a folder of results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from paged_core.errors import SettingsError
from paged_core.settings.documents import read_text
from paged_plugins.lab.measures import MEASURES
from paged_plugins.lab.results.folder import MANIFEST, Manifest
from paged_plugins.lab.results.results import Results, RunResult
from paged_plugins.lab.results.store import read_record
from paged_plugins.lab.results.tables import RUNS
from paged_plugins.lab.runs.run_record import RunRecord
from paged_plugins.lab.study.study import Strict

_MAX_SIZE = 2**30
"""Bytes of a manifest, and of the table of runs."""
_Read = TypeVar("_Read")


class _Measured(Strict):
    """A row of the table of runs."""

    arm: str
    workload: str
    seed: int
    measure: str
    value: Annotated[float, Field(allow_inf_nan=False)]


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
    paths = {run.place: run.file(folder) for run in manifest.runs}
    failures = {run.place: run.failure for run in manifest.runs}
    labels = [arm.label for arm in manifest.arms]
    names = [str(workload.get("name", "")) for workload in manifest.workloads]
    measured: dict[tuple[str, str, int], dict[str, float]] = {}
    for row in rows:
        if row.arm not in labels or row.workload not in names or row.measure not in MEASURES:
            raise SettingsError(f"{folder / RUNS} is damaged: {MANIFEST} knows nothing of {row}")
        measured.setdefault((row.arm, row.workload, row.seed), {})[row.measure] = row.value

    def record(*place: Any) -> RunRecord | None:
        path = paths.get(place)
        return read_record(path) if path and path.is_file() else None

    return Results(
        arms=manifest.arms,
        workloads=names,
        seeds=manifest.seeds,
        runs=[
            RunResult(*place, measures=found, failure=failures.get(place))
            for place, found in measured.items()
        ],
        slo=manifest.slo,
        manifest=manifest.model_dump(mode="json"),
        num_replicas=manifest.replicas,
        chosen=manifest.chosen,
        record=record,
    )


def _read(path: Path, kind: TypeAdapter[_Read]) -> _Read:
    try:
        return kind.validate_json(read_text(path, _MAX_SIZE))
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
