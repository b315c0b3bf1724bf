"""The results of a comparison as a folder, which ``paged-core lab report`` reads."""

from __future__ import annotations

from pathlib import Path

from paged_core.errors import SettingsError
from paged_core.registry import Registry
from paged_plugins.files import unwritable
from paged_plugins.lab.comparison.comparison import Comparison
from paged_plugins.lab.results.manifest import Manifest, RunEntry, new_manifest, now, write_manifest
from paged_plugins.lab.results.results import Results
from paged_plugins.lab.results.results_folder import RECORDS
from paged_plugins.lab.results.run_store import RunStore
from paged_plugins.lab.results.tables import write_tables


def make_folder(folder: Path) -> None:
    """Make the folder, before anything is run.

    Raises:
        SettingsError: it has something in it already, or cannot be made.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise SettingsError(f"--output {folder}: there is something already; give a new folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(folder, error, "--output") from None


def manifest_of(comparison: Comparison, registry: Registry, command: str) -> Manifest:
    """Return what a comparison ran, with what, and where.

    Args:
        command: as it was given.
    """
    made = new_manifest(
        command,
        comparison.arms,
        [comparison.workload],
        range(comparison.num_seeds),
        comparison.slo,
        registry,
    )
    return made.model_copy(update={"finished": now()})


def write_folder(
    folder: Path, comparison: Comparison, results: Results, registry: Registry, manifest: Manifest
) -> None:
    """Write the manifest, the tables and the records of all runs.

    Args:
        folder: as :func:`make_folder` has made it.
        results: with all records.
    """
    store = RunStore(folder / RECORDS, registry)
    entries = []
    rows = []
    for task, run in zip(comparison.tasks(), results.runs, strict=True):
        record = results.record(*task.place)
        assert record is not None
        store.write(key := store.key(task), task, record)
        entries.append(
            RunEntry(
                arm=run.arm,
                workload=run.workload,
                seed=run.seed,
                key=key,
                failure=run.failure,
            )
        )
        rows.append((run, record))
    write_tables(folder, rows)
    whole = manifest.model_copy(update={"runs": tuple(entries)})
    write_manifest(folder, whole)
