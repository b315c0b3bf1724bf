"""A decision trace: the decisions of an engine, one JSON object per step."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from paged_core.config.documents import parse_json, read_text
from paged_core.errors import SettingsError
from paged_core.interfaces.observer import StepRecord

KEYS = (
    "step",
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
)
"""Keys of one line, in order."""

MAX_TRACE_SIZE = 2**30
"""Bytes of a file of traces."""

UNFINISHED = "unfinished"
"""Key of the last line of a trace that was cut off at ``max_steps``: requests that go on."""


def trace_line(record: StepRecord, step: int) -> dict[str, Any]:
    """Return the line of one step; ``step`` is its number in the trace."""
    queues = record.queues
    return {
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
    }


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


def trace_problem(trace: object) -> str | None:
    """Say why ``trace`` is not a list of steps, or return ``None``."""
    if not isinstance(trace, list):
        return "a trace is a list of steps"
    for number, line in enumerate(trace):
        if problem := line_problem(line):
            return f"entry {number} of the trace is not a step: {problem}"
    return None


def line_problem(line: object) -> str | None:
    """Say why ``line`` is not a step of a trace, or return ``None``."""
    try:
        _Line.model_validate(line)
    except ValidationError as error:
        item = error.errors()[0]
        key = ".".join(str(part) for part in item["loc"])
        said = item["msg"][:1].lower() + item["msg"][1:]
        return f"{key:.80}: {said:.200}" if key else "it is not a mapping"
    return None


def read_file(path: Path, max_size: int) -> str:
    """Return the text of a scenario, a trace or a case.

    Raises:
        SettingsError: it cannot be read, or is too large.
    """
    try:
        return read_text(path, max_size)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SettingsError(f"cannot read {path}: {reason}") from None


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
    """Keys whose values differ, the order of ``scheduled`` included.

    Where a trace was cut off is no decision, so it is left out.
    """
    keys: Iterable[str] = dict.fromkeys((*KEYS, *ours, *theirs))
    return [
        key
        for key in keys
        if (ours.get(key) != theirs.get(key) and key != UNFINISHED)
        or (key == "scheduled" and list(ours.get(key, ())) != list(theirs.get(key, ())))
    ]
