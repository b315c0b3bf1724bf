"""A decision trace: what an engine decided, one JSON object per step."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

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


def trace_line(record: StepRecord, step: int) -> dict[str, Any]:
    """Return the line of one step; ``step`` counts on the trace's own clock."""
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


def read_traces(path: Path) -> dict[str, list[dict[str, Any]]]:
    """Read the traces of a file by scenario name.

    The file holds a line of JSON per step, as ``replay --json`` and the decision log write them,
    or a recorded case. Lines without a scenario belong to ``""``.

    Raises:
        SettingsError: the file is missing or holds something else.
    """
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"cannot read {path}: {error}") from None
    try:
        whole = json.loads(text)
    except json.JSONDecodeError:
        whole = None
    if isinstance(whole, dict) and "trace" in whole:
        return {"": whole["trace"]}
    traces: dict[str, list[dict[str, Any]]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            step = json.loads(line)
            name = step.pop("scenario", "")
            if "step" not in step:
                raise ValueError("no key 'step'")
        except (ValueError, AttributeError, TypeError) as error:
            raise SettingsError(
                f"{path}, line {number}, is not a step of a trace: {error}"
            ) from None
        traces.setdefault(name, []).append(step)
    if not traces:
        raise SettingsError(f"{path} holds no step of a trace")
    return traces


def differing_keys(ours: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    """Keys whose values differ, the order of ``scheduled`` included."""
    keys: Iterable[str] = dict.fromkeys((*KEYS, *ours, *theirs))
    return [
        key
        for key in keys
        if ours.get(key) != theirs.get(key)
        or (key == "scheduled" and list(ours.get(key, ())) != list(theirs.get(key, ())))
    ]
