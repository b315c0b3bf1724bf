"""Shared memory that has a name, and that must not outlive its use."""

from __future__ import annotations

import re
import time
from contextlib import suppress
from pathlib import Path


def named_memory() -> set[str]:
    """Return the shared memory that has a name."""
    return {str(path) for path in Path("/dev/shm").iterdir()}


def check_no_memory_left(before: set[str]) -> None:
    """Check that no shared memory has come since ``before`` and stayed that no process uses.

    What other programs map is theirs, and a semaphore of theirs has a name for a moment.

    Raises:
        AssertionError: There is some after two seconds.
    """
    for _ in range(20):
        left = named_memory() - before - _mapped_memory()
        if not left:
            return
        time.sleep(0.1)
    raise AssertionError(f"in /dev/shm there are still {sorted(left)}")


def _mapped_memory() -> set[str]:
    """Return the shared memory that a process has mapped."""
    found = set[str]()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with suppress(OSError):
            found.update(re.findall(r"/dev/shm/\S+", maps.read_text("utf-8", "replace")))
    return found
