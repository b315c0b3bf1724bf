"""The output of commands: JSON for machines, tables for people."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from paged_core.terminal import COMMANDS, printable


def print_json(value: Any) -> None:
    """Print one JSON document to standard output."""
    text = json.dumps(value, indent=2, ensure_ascii=False, default=str)
    sys.stdout.write(re.sub(COMMANDS, lambda found: f"\\u{ord(found[0]):04x}", text) + "\n")


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table to standard output: drawn on a terminal, plain elsewhere."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(width=None if sys.stdout.isatty() else 200, highlight=False)
    table = Table(
        title=printable(title),
        title_justify="left",
        box=box.SIMPLE_HEAD if console.is_terminal else None,
    )
    for column in columns:
        table.add_column(printable(column), overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(show(cell))) for cell in row))
    console.print(table)


def show(value: object) -> str:
    """Return a value as it is written in a settings file."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return value if isinstance(value, str) else json.dumps(value, default=str)


def echo(text: str, *, err: bool = False) -> None:
    """Print a line, or several, to standard output or to standard error; printable."""
    file = sys.stderr if err else sys.stdout
    file.write(printable(text) + "\n")
    file.flush()  # so that lines of both are in their order
