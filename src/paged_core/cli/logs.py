"""Logs of commands: to standard error, and no more than was asked for."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping

from paged_core.errors import SettingsError, did_you_mean
from paged_core.settings.environment import PREFIX

LEVELS = {name: getattr(logging, name.upper()) for name in ("debug", "info", "warning", "error")}


def configure_logs(level: str | None, environ: Mapping[str, str]) -> None:
    """Set up structlog for this process; only commands do this, never the library.

    Args:
        level: what ``--log-level`` says; ``None``: ``PAGED_CORE_LOG_LEVEL``, or else warnings.

    Raises:
        SettingsError: there is no such level.
    """
    chosen = level or environ.get(f"{PREFIX}LOG_LEVEL") or "warning"
    if chosen.lower() not in LEVELS:
        where = "--log-level" if level else f"{PREFIX}LOG_LEVEL"
        raise SettingsError(f"{where}: no level is called {chosen!r}{did_you_mean(chosen, LEVELS)}")
    import structlog

    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False),
            structlog.dev.ConsoleRenderer(
                colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
            ),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[chosen.lower()]),
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
        cache_logger_on_first_use=False,
    )
