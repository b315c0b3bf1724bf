"""The records of runs, a file each, by a digest of what was run."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from pydantic import ConfigDict, ValidationError

from paged_core.errors import SettingsError
from paged_plugins.lab.results.tables import PARTIAL, write_bytes
from paged_plugins.lab.runs.run_record import RunRecord
from paged_plugins.lab.study.study import Strict
from paged_plugins.lab.tasks.task import Task

_SUFFIX = ".json.gz"
_MAX_SIZE = 2**31
"""Bytes of a record, unpacked."""


class _Run(Strict):
    """The content of a file."""

    model_config = ConfigDict(ser_json_inf_nan="constants", allow_inf_nan=True)

    arm: str
    workload: str
    seed: int
    record: RunRecord


def record_path(folder: Path, key: str) -> Path:
    """Return the file of a record in the folder of records."""
    return folder / f"{key}{_SUFFIX}"


def write_record(path: Path, task: Task, record: RunRecord) -> None:
    """Write a record to a file."""
    ordered = replace(record, token_gaps=dict(sorted(record.token_gaps.items())))
    run = _Run(arm=task.arm, workload=task.workload.name, seed=task.seed, record=ordered)
    packed = gzip.compress(run.model_dump_json().encode(), compresslevel=4, mtime=0)
    write_bytes(path, packed)


def read_record(path: Path) -> RunRecord:
    """Return the record in a file.

    Raises:
        SettingsError: it is missing, damaged, or larger than any record.
    """
    try:
        with gzip.open(path) as file:
            content = file.read(_MAX_SIZE + 1)
        if len(content) > _MAX_SIZE:
            raise ValueError(f"it unpacks to more than {_MAX_SIZE:,} bytes")
        return _Run.model_validate_json(content).record
    except (OSError, EOFError, zlib.error, ValueError) as error:
        why = "it holds no run" if isinstance(error, ValidationError) else str(error)
        raise SettingsError(f"cannot read {path}: {why}; remove it and run again") from None


def known_record(path: Path) -> RunRecord | None:
    """Return the record in a file; ``None``: it is missing or damaged."""
    try:
        return read_record(path)
    except SettingsError:
        return None


def remove_others(folder: Path, keys: Collection[str]) -> None:
    """Remove all other records, which older code or settings made, and unfinished files."""
    for path in folder.iterdir():
        known = path.name.endswith((_SUFFIX, PARTIAL))
        if known and path.name.removesuffix(_SUFFIX) not in keys:
            path.unlink(missing_ok=True)
