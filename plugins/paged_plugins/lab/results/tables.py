"""The tidy tables of a study."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import fields
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_type_hints

from paged_plugins.lab.results.results import RunResult
from paged_plugins.lab.runs.run_record import RequestRecord, RunRecord, StepSample
from paged_plugins.written_files import replacing, write_text

RUNS = "runs.json"
TABLES = (RUNS, "runs.parquet", "requests.parquet", "steps.parquet")
_KEY = {"arm": str, "workload": str, "seed": int}
_RUN = _KEY | {"measure": str, "value": float}


Extend = Callable[[Iterable[tuple[Any, ...]]], None]
"""Appends rows to a table, each with a value for every column."""


@contextmanager
def parquet_table(
    path: Path, columns: Mapping[str, Any], num_rows: int = 100_000
) -> Iterator[Extend]:
    """Write a table to a Parquet file that is there once the block has ended; equal rows make equal
    bytes.

    Args:
        columns: their types by name: ``str``, ``int``, ``float`` or ``bool``, or one ``| None``.
        num_rows: that are kept in memory, and form a row group.

    Raises:
        ImportError: pyarrow is not installed.
        WriteFailed: the file cannot be written.
    """
    import pyarrow
    import pyarrow.parquet

    kinds = {
        str: pyarrow.string(),
        int: pyarrow.int64(),
        float: pyarrow.float64(),
        bool: pyarrow.bool_(),
    }
    schema = pyarrow.schema([(name, kinds[_without_none(kind)]) for name, kind in columns.items()])
    rows: list[tuple[Any, ...]] = []

    def flush() -> None:
        if rows:
            values = dict(zip(schema.names, map(list, zip(*rows, strict=True)), strict=True))
            writer.write_table(pyarrow.table(values, schema=schema))
            rows.clear()

    def extend(more: Iterable[tuple[Any, ...]]) -> None:
        rows.extend(more)
        if len(rows) >= num_rows:
            flush()

    with replacing(path) as file, pyarrow.parquet.ParquetWriter(file, schema) as writer:
        yield extend
        flush()


def _without_none(kind: Any) -> Any:
    return next((part for part in get_args(kind) if part is not NoneType), kind)


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
            name: stack.enter_context(parquet_table(folder / f"{name}.parquet", kinds))
            for name, kinds in (columns.items() if find_spec("pyarrow") else ())
        }
        for run, record in runs:
            key = run.arm, run.workload, run.seed
            rows: dict[str, list[tuple[Any, ...]]] = {
                "runs": [(*key, name, float(value)) for name, value in run.measures.items()],
                "requests": [(*key, *request_values(one)) for one in record.requests],
                "steps": [(*key, *step_values(one)) for one in record.steps],
            }
            lines += [json.dumps(dict(zip(_RUN, row, strict=True))) for row in rows["runs"]]
            for name, extend in tables.items():
                extend(rows[name])
    write_text(folder / RUNS, "[\n" + ",\n".join(lines) + "\n]\n")
    return bool(tables)


request_values, step_values = (
    attrgetter(*(field.name for field in fields(kind))) for kind in (RequestRecord, StepSample)
)
"""The values of a record in the order of its columns."""
