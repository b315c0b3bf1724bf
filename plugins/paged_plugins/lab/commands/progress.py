"""Progress on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol


class Advance(Protocol):
    """Moves a bar on."""

    def __call__(self, count: int = 1, /) -> None:
        """Move it by so many items."""


@contextmanager
def progress(total: int, what: str) -> Iterator[Advance]:
    """Show a bar on standard error if it is a terminal; call what is yielded for every item."""
    if total < 2 or not sys.stderr.isatty():
        yield lambda count=1, /: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    bar = Progress(
        what,
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    with bar:
        task = bar.add_task(what, total=total)
        yield lambda count=1, /: bar.advance(task, count)


@contextmanager
def counting(what: str) -> Iterator[Callable[[int], None]]:
    """Show on standard error, if it is a terminal, how many have ended; the total is not known."""
    if not sys.stderr.isatty():
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TimeElapsedColumn

    bar = Progress(
        SpinnerColumn(),
        f"{{task.completed:,.0f}} {what}",
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    with bar:
        task = bar.add_task(what, total=None)
        yield lambda count: bar.advance(task, count)
