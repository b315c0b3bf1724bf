"""Logs of commands: to standard error, and no more than was asked for."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from typing import Any

from paged_core.cli.output import echo
from paged_core.errors import SettingsError, did_you_mean
from paged_core.log import get_logger
from paged_core.settings.environment import PREFIX

LEVELS = {name: getattr(logging, name.upper()) for name in ("debug", "info", "warning", "error")}
FORMATS = ("text", "json")


def configure_logs(level: str | None, environ: Mapping[str, str]) -> None:
    """Set up structlog for this process; only commands do this, never the library.

    Args:
        level: what ``--log-level`` says; ``None``: ``PAGED_CORE_LOG_LEVEL``, or else warnings.
        environ: ``PAGED_CORE_LOG_FORMAT`` in it says whether lines are text or JSON.

    Raises:
        SettingsError: there is no such level, or format.
    """
    chosen = level or environ.get(f"{PREFIX}LOG_LEVEL") or "warning"
    if chosen.lower() not in LEVELS:
        where = "--log-level" if level else f"{PREFIX}LOG_LEVEL"
        raise SettingsError(f"{where}: no level is called {chosen!r}{did_you_mean(chosen, LEVELS)}")
    form = environ.get(f"{PREFIX}LOG_FORMAT") or "text"
    if form not in FORMATS:
        known = did_you_mean(form, FORMATS)
        raise SettingsError(f"{PREFIX}LOG_FORMAT: no format is called {form!r}{known}")
    import structlog

    console = structlog.dev.ConsoleRenderer(
        colors=sys.stderr.isatty(),
        exception_formatter=structlog.dev.plain_traceback,
        sort_keys=False,
    )
    stamped: list[Any] = [structlog.processors.TimeStamper("%Y-%m-%d %H:%M:%S", utc=False), console]
    if form == "json":
        stamped = [
            structlog.processors.TimeStamper("iso"),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ]
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            *stamped,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[chosen.lower()]),
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
        cache_logger_on_first_use=False,
    )


def tell(text: str) -> None:
    """Say what a command does: on standard error, as a line of the log where that is JSON."""
    import structlog

    if isinstance(structlog.get_config()["processors"][-1], structlog.processors.JSONRenderer):
        always = structlog.make_filtering_bound_logger(logging.INFO)
        get_logger(wrapper_class=always).info(text)
    else:
        echo(text, err=True)
