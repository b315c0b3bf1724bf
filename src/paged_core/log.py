"""Logs of the library: structlog's, as the program that uses it has set that up."""

from __future__ import annotations

import sys
from contextlib import suppress
from functools import partial
from typing import Any

import structlog

from paged_core.terminal import printable


class _Sink:
    """Where lines go: where structlog was told to, or else warnings and errors to standard error.

    Left alone, structlog prints everything to standard output, which belongs to the program. A line
    that cannot be written (the stream is closed, or full) is dropped: what it is about goes on.
    What files say in it does not command a terminal.
    """

    def __getattr__(self, method: str) -> Any:
        return partial(_write, method)


def _write(method: str, *args: Any, **values: Any) -> None:
    lines = (printable(arg, keep_colours=True) if isinstance(arg, str) else arg for arg in args)
    with suppress(OSError, ValueError):
        if structlog.is_configured():
            getattr(structlog.get_config()["logger_factory"](), method)(*lines, **values)
        elif method not in ("debug", "info") and sys.stderr is not None:
            getattr(structlog.PrintLogger(sys.stderr), method)(*lines, **values)


def get_logger(**options: Any) -> Any:
    """Return a logger for a module, with structlog's options; nothing is decided before a line."""
    return structlog.wrap_logger(_Sink(), **options)
