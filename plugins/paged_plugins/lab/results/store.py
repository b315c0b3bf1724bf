"""The records of runs, a file each, by a digest of what was run."""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from stat import S_ISREG

from pydantic import ConfigDict, ValidationError

from paged_core.errors import SettingsError
from paged_plugins.lab.results.results import RunResult
from paged_plugins.lab.runs.run_record import RunRecord
from paged_plugins.lab.study.study import Strict
from paged_plugins.written_files import write_bytes, write_text

_SUFFIX = ".json.gz"
_MAX_SIZE = 2**31
"""Bytes of a record, unpacked."""


class _Run(Strict):
    """The content of a file."""

    model_config = ConfigDict(ser_json_inf_nan="constants", allow_inf_nan=True)

    arm: str
    workload: str
    seed: int
    key: str | None = None
    """``None``: it was written before records had it."""
    record: RunRecord

    def __str__(self) -> str:
        return f"{self.arm}, {self.workload}, seed {self.seed}"


class _Damaged(SettingsError):
    """A file that holds no record, or none that can be read: the run can be repeated."""


@dataclass(frozen=True, slots=True)
class RecordFile:
    """The file of one run's record, whether it is there or not."""

    folder: Path
    place: tuple[str, str, int]
    """Arm, workload and seed."""
    key: str
    """A digest of all that the run depends on."""

    @property
    def name(self) -> str:
        """Within the folder."""
        return f"{self.key}{_SUFFIX}"

    @property
    def path(self) -> Path:
        """Where it is."""
        return self.folder / self.name

    def write(self, record: RunRecord) -> None:
        """Write the record; WriteFailed if that fails."""
        ordered = replace(record, token_gaps=dict(sorted(record.token_gaps.items())))
        arm, workload, seed = self.place
        run = _Run(arm=arm, workload=workload, seed=seed, key=self.key, record=ordered)
        packed = gzip.compress(run.model_dump_json().encode(), compresslevel=4, mtime=0)
        write_bytes(self.path, packed)

    def read(self) -> RunRecord:
        """Return the record.

        Raises:
            SettingsError: it is missing, damaged, larger than any record, or that of another run.
        """
        return self._read().record

    def known(self) -> RunRecord | None:
        """Return the record; ``None``: it is missing or damaged, so that the run is to be repeated.

        Raises:
            SettingsError: there is something else in its place, which is not to be overwritten.
        """
        try:
            run = self._read()
        except _Damaged:
            return None
        return None if run.key is None else run.record

    def remove(self) -> None:
        """Remove the file, if it is there and no link, pipe or folder."""
        try:
            is_file = S_ISREG(self.path.lstat().st_mode)
        except FileNotFoundError:
            return
        if is_file:
            self.path.unlink(missing_ok=True)

    def _read(self) -> _Run:
        path = self.path
        try:
            with os.fdopen(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb") as raw:
                if not S_ISREG(os.fstat(raw.fileno()).st_mode):
                    raise SettingsError(f"{path} is no regular file; remove it and run again")
                with gzip.open(raw) as file:
                    content = file.read(_MAX_SIZE + 1)
            if len(content) > _MAX_SIZE:
                raise ValueError(f"it unpacks to more than {_MAX_SIZE:,} bytes")
            run = _Run.model_validate_json(content)
        except (OSError, EOFError, zlib.error, ValueError) as error:
            why = "it holds no run" if isinstance(error, ValidationError) else str(error)
            raise _Damaged(f"cannot read {path}: {why}; remove it and run again") from None
        arm, workload, seed = self.place
        if (run.arm, run.workload, run.seed) != self.place or run.key not in (None, self.key):
            raise SettingsError(
                f"{path} is the record of another run ({run}, {run.key}), not that of {arm}, "
                f"{workload}, seed {seed}; remove it and run again"
            )
        return run


RUNS = "runs.json"


def write_measures(folder: Path, runs: Iterable[RunResult]) -> None:
    """Write ``runs.json``: a row for each measure of each run."""
    lines = [
        json.dumps(
            {
                "arm": run.arm,
                "workload": run.workload,
                "seed": run.seed,
                "measure": name,
                "value": float(value),
            }
        )
        for run in runs
        for name, value in run.measures.items()
    ]
    write_text(folder / RUNS, "[\n" + ",\n".join(lines) + "\n]\n")
