"""Writes the decisions of a running engine in the format of a replayed trace."""

from __future__ import annotations

import json

from paged_core.interfaces.observer import Observer, ObserverParts, StepRecord
from paged_plugins.decisions.settings import DecisionLogSettings
from paged_plugins.decisions.trace import TraceLines
from paged_plugins.output_file import open_file


class DecisionLog(Observer):
    """One line of JSON per step; ``paged-core diff`` compares two such files.

    Raises:
        SettingsError: the file cannot be written.
    """

    def __init__(self, options: DecisionLogSettings, parts: ObserverParts, /) -> None:
        self._file = open_file(options.path, "decision_log.path")
        self._lines = TraceLines()
        self._start: float | None = None
        """When the first step was planned."""

    def on_step(self, step: StepRecord, /) -> None:
        if self._start is None:
            self._start = step.now
        time, seconds = step.now - self._start, step.ended - step.now
        self._file.write(json.dumps(self._lines.line(step, step.number, time, seconds)) + "\n")

    def close(self) -> None:
        self._file.close()
