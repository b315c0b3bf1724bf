"""A decision trace: the decisions of an engine, one JSON object per step; and what logs it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from paged_core.engine.contexts import ObserverContext
from paged_core.errors import SettingsError
from paged_core.interfaces.observer import Observer, StepRecord
from paged_core.sequence import SequenceGroup
from paged_core.settings.documents import parse_json
from paged_plugins.decisions.plugin import DecisionLogSettings
from paged_plugins.files import read_file
from paged_plugins.written_files import open_log

VERSION = 2
"""Version of the format that is written."""
DECISIONS = (
    "scheduled",
    "cached",
    "preempted",
    "swapped_out",
    "swapped_in",
    "ignored",
    "finished",
    "running",
    "waiting",
    "swapped",
    "free_blocks",
    "evicted",
    "hits",
)
"""Keys of a line that say what was decided, in order; version 1 ends with ``free_blocks``."""
TIMES = ("time", "seconds", "idle")
"""Keys of a line that say when: two runs on real hardware never agree in them."""
KEYS = ("version", "step", *DECISIONS, *TIMES)
"""Keys of one line, in order."""
_DIGITS = 9
"""Decimal places of seconds: nanoseconds."""

MAX_TRACE_SIZE = 2**30
"""Bytes of a file of traces."""

UNFINISHED = "unfinished"
"""Key of the last line of a trace that was cut off at ``max_steps``: requests that go on."""
FAILED = "failed"
"""Key of the last line of a trace of which requests ended with an error: how many, and why."""


class TraceLines:
    """Makes the lines of a trace, and knows when the last step ended."""

    def __init__(self) -> None:
        self._ended = 0.0

    def line(self, record: StepRecord, step: int, time: float, seconds: float) -> dict[str, Any]:
        """Return the line of one step.

        Args:
            step: its number in the trace.
            time: when it was planned, in seconds from the start.
            seconds: the time that it took.
        """
        idle = max(0.0, time - self._ended)
        self._ended = time + seconds
        queues = record.queues
        return {
            "version": VERSION,
            "step": step,
            "scheduled": dict(record.scheduled),
            "cached": dict(record.cached),
            "preempted": list(record.preempted),
            "swapped_out": list(record.swapped_out),
            "swapped_in": list(record.swapped_in),
            "ignored": list(record.ignored),
            "finished": list(record.finished),
            "running": [group.id for group in queues.running],
            "waiting": [group.id for group in queues.waiting],
            "swapped": [group.id for group in queues.swapped],
            "free_blocks": record.free_blocks,
            "evicted": list(record.evicted),
            "hits": {name: list(blocks) for name, blocks in record.hits.items()},
            "time": round(time, _DIGITS),
            "seconds": round(seconds, _DIGITS),
            "idle": round(idle, _DIGITS),
        }


Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Line(BaseModel):
    """One step of a trace; a decision log may have more keys."""

    model_config = ConfigDict(extra="allow", strict=True)

    scenario: str = ""
    step: int
    scheduled: dict[str, int]
    cached: dict[str, int]
    preempted: list[str]
    swapped_out: list[str]
    swapped_in: list[str]
    ignored: list[str]
    finished: list[str]
    running: list[str]
    waiting: list[str]
    swapped: list[str]
    free_blocks: int


class _Line2(_Line):
    """One step of a trace of version 2."""

    evicted: list[int]
    hits: dict[str, list[int]]
    time: Seconds
    seconds: Seconds
    idle: Seconds


_VERSIONS: Mapping[int, type[_Line]] = {1: _Line, VERSION: _Line2}


def trace_problem(trace: object) -> str | None:
    """Say why ``trace`` is not a list of steps, or return ``None``."""
    if not isinstance(trace, list):
        return "a trace is a list of steps"
    for number, line in enumerate(trace):
        if problem := line_problem(line):
            return f"entry {number} of the trace is not a step: {problem}"
    return None


def line_problem(line: object) -> str | None:
    """Say why ``line`` is not a step of a trace, or return ``None``.

    A line that states no version is of version 1.
    """
    version = line.get("version", 1) if isinstance(line, dict) else 1
    if type(version) is not int or version not in _VERSIONS:
        return f"version: {version!r:.80} is none that can be read; there are 1 and {VERSION}"
    try:
        _VERSIONS[version].model_validate(line)
    except ValidationError as error:
        item = error.errors()[0]
        key = ".".join(str(part) for part in item["loc"])
        said = item["msg"][:1].lower() + item["msg"][1:]
        return f"{key:.80}: {said:.200}" if key else "it is not a mapping"
    return None


def in_version(line: dict[str, Any], version: int) -> dict[str, Any]:
    """Return a line as that version of the format has it: without the keys that came later."""
    fields = _VERSIONS[version].model_fields
    return {key: value for key, value in line.items() if version == VERSION or key in fields}


def version_of(trace: Sequence[Mapping[str, Any]]) -> int:
    """Return the version of the format that a trace is in."""
    return min((int(line.get("version", 1)) for line in trace), default=VERSION)


def read_traces(path: Path) -> dict[str, list[dict[str, Any]]]:
    """Read the traces of a file by scenario name.

    The file holds a line of JSON per step, as ``replay --json`` and the decision log write them,
    or a recorded case. Lines without a scenario belong to ``""``.

    Raises:
        SettingsError: the file is missing or holds something else.
    """
    text = read_file(path, MAX_TRACE_SIZE)
    try:
        whole = parse_json(text)
    except ValueError:
        whole = None
    if isinstance(whole, dict) and "trace" in whole:
        if problem := trace_problem(whole["trace"]):
            raise SettingsError(f"{path}: {problem}")
        return {"": whole["trace"]}
    traces: dict[str, list[dict[str, Any]]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            step = parse_json(line)
        except ValueError as error:
            raise SettingsError(f"{path}, line {number}, is not JSON: {error}") from None
        if problem := line_problem(step):
            raise SettingsError(f"{path}, line {number}, is not a step of a trace: {problem}")
        name = step.pop("scenario", "")
        traces.setdefault(name, []).append(step)
    if not traces:
        raise SettingsError(f"{path} holds no step of a trace")
    return traces


def differing_keys(ours: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    """Keys of both lines whose values differ, the order of ``scheduled`` included.

    Where a trace was cut off or failed is no decision, nor is how long a step took, so they are
    left out; and so is what the format of only one of the traces has.
    """
    left_out = {UNFINISHED, FAILED, "version", *TIMES}
    keys = dict.fromkeys((*KEYS, *ours))
    return [
        key
        for key in keys
        if (key in ours and key in theirs and key not in left_out)
        and (
            ours[key] != theirs[key]
            or (key == "scheduled" and list(ours[key]) != list(theirs[key]))
        )
    ]


class DecisionLog(Observer):
    """One line of JSON per step; ``paged-core diff`` compares two such files.

    Raises:
        SettingsError: the file cannot be written.
    """

    def __init__(self, options: DecisionLogSettings, context: ObserverContext, /) -> None:
        self._file = open_log(options.path, "decision_log.path")
        self._lines = TraceLines()
        self._refused: list[str] = []
        """Requests that the admission refused since the last step."""
        self._start: float | None = None
        """When the first step was planned."""

    def on_step(self, step: StepRecord, /) -> None:
        if self._start is None:
            self._start = step.now
        time, seconds = step.now - self._start, step.ended - step.now
        line = self._lines.line(step, step.number, time, seconds)
        line["ignored"] = [*self._refused, *line["ignored"]]
        self._refused.clear()
        self._file.write(json.dumps(line) + "\n")

    def on_request(self, group: SequenceGroup, event: str, /) -> None:
        if event == "refused":
            self._refused.append(group.id)

    def close(self) -> None:
        self._file.close()
