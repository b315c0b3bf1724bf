"""Counts of decisions, handed from the process of the scheduler to the one that serves metrics."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from tempfile import gettempdir
from typing import Any

from paged_core_vllm.faults import Tally

SECONDS = 1.0
"""Between two writings, at least."""


def counts_file(instance_id: str, rank: int) -> Path:
    """Return the file of one scheduler, in a folder that is the user's alone."""
    folder = Path(gettempdir()) / f"paged-core-vllm-{os.getuid()}"
    return folder / f"{instance_id or 'vllm'}.{rank}.json"


class CountsWriter:
    """Writes the counts of a tally, whole, at most once a second. Failing, it does nothing."""

    def __init__(self, path: Path, tally: Tally) -> None:
        self._path, self._tally, self._next = path, tally, 0.0
        with suppress(OSError):
            path.parent.mkdir(mode=0o700, exist_ok=True)

    def write(self, now: float) -> None:
        if now >= self._next:
            self._next = now + SECONDS
            part = self._path.with_suffix(".part")
            with suppress(OSError):
                part.write_text(json.dumps(self._tally.values()), "utf-8")
                part.replace(self._path)

    def close(self) -> None:
        with suppress(OSError):
            self._path.unlink(missing_ok=True)


def read_counts(path: Path) -> dict[str, dict[str, Any]]:
    """Return the counts by slot; none before they are first written."""
    try:
        if path.stat().st_uid != os.getuid():
            return {}
        found: dict[str, dict[str, Any]] = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return found
