"""The tidy tables of a study, and files that are whole or not there."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from types import NoneType, TracebackType
from typing import Any, Self, get_args, get_type_hints

from paged_plugins.lab.results.results import RunResult
from paged_plugins.lab.runs.run_record import RequestRecord, RunRecord, StepSample
from paged_plugins.output_file import unwritable

PARTIAL = ".partial"
"""End of the name of a file that is being written."""


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a path to write to, which takes the place of ``path`` once the block has ended.

    A link, a pipe or a device stays what it is: it is written to.

    Raises:
        SettingsError: the file cannot be written.
    """
    try:
        if path.is_symlink() or (path.exists() and not path.is_file()):
            yield path
            return
        partial = path.with_name(f"{path.name}.{os.getpid()}{PARTIAL}")
        try:
            yield partial
            with partial.open("rb") as file:
                os.fsync(file.fileno())
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise unwritable(path, error) from None


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file, or replace it."""
    with replacing(path) as partial:
        partial.write_bytes(content)


_ROWS = 100_000
"""That are kept in memory, and form a row group."""


class ParquetTable:
    """Rows go to a file that is there once the block has ended; equal rows make equal bytes.

    Args:
        columns: their types by name: ``str``, ``int``, ``float`` or ``bool``, or one ``| None``.

    Raises:
        ImportError: pyarrow is not installed.
    """

    def __init__(self, path: Path, columns: Mapping[str, Any]) -> None:
        import pyarrow
        import pyarrow.parquet

        self._arrow, self._parquet = pyarrow, pyarrow.parquet
        made = {
            str: pyarrow.string(),
            int: pyarrow.int64(),
            float: pyarrow.float64(),
            bool: pyarrow.bool_(),
        }
        self._schema = pyarrow.schema(
            [(name, made[_without_none(kind)]) for name, kind in columns.items()]
        )
        self._path = path
        self._rows: list[tuple[Any, ...]] = []
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        partial = self._stack.enter_context(replacing(self._path))
        writer = self._parquet.ParquetWriter(partial, self._schema)
        self._writer = self._stack.enter_context(writer)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self._flush()
        self._stack.__exit__(kind, error, trace)

    def extend(self, rows: Iterable[tuple[Any, ...]]) -> None:
        """Append rows, each with a value for every column."""
        self._rows += rows
        if len(self._rows) >= _ROWS:
            self._flush()

    def _flush(self) -> None:
        if self._rows:
            columns = map(list, zip(*self._rows, strict=True))
            arrays = [
                self._arrow.array(values, type=field.type)
                for values, field in zip(columns, self._schema, strict=True)
            ]
            self._writer.write_table(self._arrow.Table.from_arrays(arrays, schema=self._schema))
            self._rows.clear()


def _without_none(kind: Any) -> Any:
    return next((part for part in get_args(kind) if part is not NoneType), kind)


RUNS = "runs.json"
TABLES = (RUNS, "runs.parquet", "requests.parquet", "steps.parquet")
_KEY = {"arm": str, "workload": str, "seed": int}
_RUN = _KEY | {"measure": str, "value": float}


def write_tables(folder: Path, runs: Iterable[tuple[RunResult, RunRecord]]) -> bool:
    """Write ``runs.json`` and, with pyarrow, the tables of runs, requests and steps.

    Args:
        runs: one at a time; their records are not kept.

    Returns:
        whether pyarrow is there.
    """
    columns = {
        "runs": _RUN,
        "requests": _KEY | get_type_hints(RequestRecord),
        "steps": _KEY | get_type_hints(StepSample),
    }
    lines = []
    with ExitStack() as stack:
        tables = {
            name: stack.enter_context(ParquetTable(folder / f"{name}.parquet", kinds))
            for name, kinds in (columns.items() if find_spec("pyarrow") else ())
        }
        for result, record in runs:
            measured = list(_measured(result))
            lines += [json.dumps(dict(zip(_RUN, row, strict=True))) for row in measured]
            rows = {
                "runs": measured,
                "requests": _rows(result, record.requests),
                "steps": _rows(result, record.steps),
            }
            for name, table in tables.items():
                table.extend(rows[name])
    write_bytes(folder / RUNS, ("[\n" + ",\n".join(lines) + "\n]\n").encode())
    return bool(tables)


def _measured(run: RunResult) -> Iterator[tuple[Any, ...]]:
    for measure, value in run.measures.items():
        yield run.arm, run.workload, run.seed, measure, float(value)


def _rows(run: RunResult, records: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    for one in records:
        values = (getattr(one, field.name) for field in fields(one))
        yield run.arm, run.workload, run.seed, *values
