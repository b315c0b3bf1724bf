"""The tidy tables of a study: JSON always, Parquet where pyarrow is installed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_type_hints

from paged_plugins.lab.results.atomic_file import write_bytes
from paged_plugins.lab.results.parquet_table import ParquetTable
from paged_plugins.lab.results.results import RunResult
from paged_plugins.lab.runs.run_record import RequestRecord, RunRecord, StepSample

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
