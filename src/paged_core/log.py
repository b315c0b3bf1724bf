"""Logs of the library: structlog's, as the program that uses it has set that up."""

from __future__ import annotations

import sys
from typing import Any

import structlog


class _Sink:
    """Where lines go: where structlog was told to, or else warnings and errors to standard error.

    Left alone, structlog prints everything to standard output, which belongs to the program.
    """

    def __getattr__(self, method: str) -> Any:
        if structlog.is_configured():
            return getattr(structlog.get_config()["logger_factory"](), method)
        if method in ("debug", "info"):
            return lambda _line: None
        return getattr(structlog.PrintLogger(sys.stderr), method)


def get_logger() -> Any:
    """Return a logger for a module; nothing is decided before its first line."""
    return structlog.wrap_logger(_Sink())
