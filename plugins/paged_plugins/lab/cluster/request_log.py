"""A file with a line for each request that ended, written while a cluster runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

from paged_core.errors import SettingsError
from paged_plugins.files import unwritable
from paged_plugins.lab.cluster.watch import OnRequest
from paged_plugins.lab.runs.run_record import RequestRecord

_ROWS = 10_000
"""That are gathered before they are written to Parquet, which keeps columns."""


@contextmanager
def request_log(path: Path | None) -> Iterator[OnRequest]:
    """Write requests to a file: Parquet by its suffix, lines of JSON else; ``None``: nowhere.

    Yields:
        What is to be called with each request and the number of its replica.

    Raises:
        SettingsError: the file cannot be written, or pyarrow is missing.
    """
    if path is None:
        yield lambda request, replica: None
        return
    open_log = _parquet_log if path.suffix == ".parquet" else _json_log
    try:
        with open_log(path) as write:
            yield write
    except OSError as error:
        raise unwritable(path, error) from error


@contextmanager
def _json_log(path: Path) -> Iterator[OnRequest]:
    with path.open("w", encoding="utf-8") as file:
        yield lambda request, replica: print(json.dumps(_row(request, replica)), file=file)


@contextmanager
def _parquet_log(path: Path) -> Iterator[OnRequest]:
    arrow, parquet = _pyarrow()
    schema = _schema(arrow)
    writer = parquet.ParquetWriter(path, schema)
    rows: list[dict[str, Any]] = []

    def flush() -> None:
        writer.write_table(arrow.Table.from_pylist(rows, schema=schema))
        rows.clear()

    def write(request: RequestRecord, replica: int) -> None:
        rows.append(_row(request, replica))
        if len(rows) >= _ROWS:
            flush()

    with writer:
        yield write
        flush()


def _row(request: RequestRecord, replica: int) -> dict[str, Any]:
    return {"replica": replica, **asdict(request)}


def _schema(arrow: ModuleType) -> Any:
    text, whole, seconds = arrow.string(), arrow.int64(), arrow.float64()
    types = {"float": seconds, "float | None": seconds, "int": whole, "str": text}
    fields = RequestRecord.__dataclass_fields__.values()
    return arrow.schema(
        [("replica", whole), *((field.name, types[str(field.type)]) for field in fields)]
    )


def _pyarrow() -> tuple[ModuleType, ModuleType]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise SettingsError(
            "a Parquet file needs pyarrow, which is not installed; pip install 'paged-core[lab]', "
            "or name a file that ends with .jsonl"
        ) from error
    return pyarrow, pyarrow.parquet
