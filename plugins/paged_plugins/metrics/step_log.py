"""Observer ``step_log``: one event per step."""

from __future__ import annotations

import sys
from typing import TextIO

import structlog

from paged_core.engine.contexts import ObserverContext
from paged_core.interfaces.observer import Observer, StepRecord
from paged_plugins.metrics.plugin import StepLogSettings
from paged_plugins.written_files import open_log

_DIGITS = 6
"""Digits of seconds: microseconds."""


class StepLog(Observer):
    """Logs ``step_applied`` for every step, as a line of JSON.

    Times are seconds from the plan of the first step, on the engine's clock; those by phase are of
    this machine.

    Raises:
        SettingsError: the file cannot be written.
    """

    def __init__(self, options: StepLogSettings, context: ObserverContext, /) -> None:
        self._file: TextIO | None = None
        if options.path is not None:
            self._file = open_log(options.path, "step_log.path", appends=True)
        self._log = structlog.wrap_logger(
            structlog.WriteLogger(self._file or sys.stderr),
            processors=[structlog.processors.JSONRenderer()],
            wrapper_class=structlog.BoundLogger,
        )
        self._start: float | None = None

    def on_step(self, step: StepRecord, /) -> None:
        if self._start is None:
            self._start = step.now
        queues = step.queues
        self._log.info(
            "step_applied",
            step=step.number,
            time=round(step.now - self._start, _DIGITS),
            seconds=round(step.ended - step.now, _DIGITS),
            num_requests=len(step.scheduled),
            num_tokens=sum(step.scheduled.values()),
            num_admitted=len(step.cached),
            num_cached_tokens=sum(step.cached.values()),
            num_preempted=len(step.preempted),
            num_swapped_out=len(step.swapped_out),
            num_swapped_in=len(step.swapped_in),
            num_ignored=len(step.ignored),
            num_finished=len(step.finished),
            num_running=len(queues.running),
            num_waiting=len(queues.waiting),
            num_swapped=len(queues.swapped),
            free_blocks=step.free_blocks,
            evicted_blocks=len(step.evicted),
            copied_blocks=step.copied_blocks,
            swapped_blocks=step.swapped_blocks,
            phases={phase: round(spent, _DIGITS) for phase, spent in step.seconds.items()},
        )

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
