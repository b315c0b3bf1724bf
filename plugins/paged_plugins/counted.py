"""Numbers of things, as people read them."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """Return a number of things: ``1 seed``, ``1,200 runs``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
