"""A table in a Parquet file, written a part at a time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import NoneType, TracebackType
from typing import Any, Self, get_args

from paged_plugins.lab.results.atomic_file import replacing

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
