"""Lines of text on standard output."""

from __future__ import annotations

import sys
from collections.abc import Sequence

SHOWN = 12
"""Items of a long list that are shown."""


def listed(items: Sequence[str]) -> str:
    """Return items, and how many more there are of a long list."""
    more = f" (+{len(items) - SHOWN})" if len(items) > SHOWN else ""
    return (" ".join(items[:SHOWN]) + more) or "-"


def echo(text: str) -> None:
    """Print a line."""
    sys.stdout.write(text + "\n")
