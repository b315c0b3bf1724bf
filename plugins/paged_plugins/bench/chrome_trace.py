"""A trace of steps in the Chrome trace format (``chrome://tracing``, Perfetto)."""

from __future__ import annotations

import json
from shutil import copyfileobj
from tempfile import TemporaryFile
from typing import Any

from paged_core.engine.contexts import ObserverContext
from paged_core.interfaces.observer import Observer, StepRecord
from paged_core.sequence import SequenceGroup
from paged_plugins.bench.plugin import ChromeTraceSettings
from paged_plugins.written_files import prepare_file, replacing, unwritable

_ORDER = ("schedule", "prepare", "model", "sample", "apply")


class ChromeTrace(Observer):
    """Steps with their phases in one process, the lifetime of every request in another.

    The file is written when the engine closes; until then the trace is in one without a name.

    Raises:
        SettingsError: the file cannot be written.
    """

    def __init__(self, options: ChromeTraceSettings, context: ObserverContext, /) -> None:
        self._path = options.path
        self._events = TemporaryFile()  # noqa: SIM115 - closed with the engine
        prepare_file(self._path, "chrome_trace.path")

    def on_step(self, step: StepRecord, /) -> None:
        """Add a bar for the step and one for each of its phases, one after another."""
        begin = step.now
        total = sum(step.seconds.values())
        details = {
            "tokens": sum(step.scheduled.values()),
            "sequences": len(step.scheduled),
            "preempted": len(step.preempted),
            "waiting": len(step.queues.waiting),
            "free_blocks": step.free_blocks,
        }
        self._bar(f"step {step.number}", begin, total, details)
        for phase in _ORDER:
            if phase in step.seconds:
                self._bar(phase, begin, step.seconds[phase])
                begin += step.seconds[phase]

    def on_request(self, group: SequenceGroup, event: str, /) -> None:
        """Add a bar for the lifetime of a finished request."""
        if event == "finished" and group.finished_at is not None:
            details = {
                "prompt": len(group.request.prompt),
                "cached": group.num_cached,
                "preemptions": group.num_preemptions,
            }
            seconds = group.finished_at - group.arrival
            self._bar(f"request {group.id}", group.arrival, seconds, details, group.number)

    def close(self) -> None:
        """Write the file, once."""
        if self._events.closed:
            return
        names = {1: "engine", 2: "requests"}
        labels = [
            {"name": "process_name", "ph": "M", "pid": number, "tid": 0, "args": {"name": name}}
            for number, name in names.items()
        ]
        head = f'{{"displayTimeUnit": "ms", "traceEvents": {json.dumps(labels)[:-1]}'
        with self._events, replacing(self._path) as file:
            file.write(head.encode())
            self._events.seek(0)
            copyfileobj(self._events, file)
            file.write(b"]}\n")

    def _bar(
        self,
        name: str,
        begin: float,
        seconds: float,
        args: dict[str, Any] | None = None,
        request: int | None = None,
    ) -> None:
        """Add a bar of the engine, or of the ``request`` with that number."""
        bar = {
            "name": name,
            "cat": "step" if request is None else "request",
            "ph": "X",
            "pid": 1 if request is None else 2,
            "tid": request or 0,
            "ts": _microseconds(begin),
            "dur": _microseconds(seconds),
            "args": args or {},
        }
        try:
            self._events.write(b",\n" + json.dumps(bar).encode())
        except OSError as error:
            raise unwritable(self._path, error) from error


def _microseconds(seconds: float) -> float:
    return round(1e6 * seconds, 1)
