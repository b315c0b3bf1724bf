"""Progress of a command on standard error, if that is a terminal, and counts in words."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from rich.progress import Progress

MANY = 1000
"""Items that are checked in milliseconds: from so many on it is shown how far that is."""


class Advance(Protocol):
    """Moves a bar on."""

    def __call__(self, count: int = 1, /) -> None:
        """Move it by so many items."""


@contextmanager
def progress(total: int, what: str, *, least: int = 2) -> Iterator[Advance]:
    """Show a bar and the time that is left; call what is yielded for every item.

    Args:
        least: fewer items show nothing.
    """
    if total < least or not sys.stderr.isatty():
        yield lambda count=1, /: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with _display(what, *columns) as bar:
        task = bar.add_task(what, total=total)
        yield lambda count=1, /: bar.advance(task, count)


@contextmanager
def counting(what: str) -> Iterator[Callable[[int], None]]:
    """Show how many have ended, where the total is not known; call what is yielded with a count."""
    if not sys.stderr.isatty():
        yield lambda count: None
        return
    from rich.progress import SpinnerColumn, TimeElapsedColumn

    with _display(SpinnerColumn(), f"{{task.completed:,.0f}} {what}", TimeElapsedColumn()) as bar:
        task = bar.add_task(what, total=None)
        yield lambda count: bar.advance(task, count)


def _display(*columns: Any) -> Progress:
    from rich.console import Console
    from rich.progress import Progress

    return Progress(*columns, console=Console(stderr=True), transient=True)


def errors_text(num_errors: int, num_requests: int, cause: str | None) -> str:
    """Say how many requests of a run, or of several, ended with an error, and why the first did."""
    told = f"{num_errors:,} of {counted(num_requests, 'request')} ended with an error"
    return f"{told}, the first: {cause}" if cause else told


def counted(number: int, noun: str) -> str:
    """Return a number of things: ``1 seed``, ``1,200 runs``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
