"""Counts work in units that do not depend on the machine or its load."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def work(function: Callable[[], object]) -> int:
    """Return the number of bytecode instructions that a call takes.

    A call of a built-in counts as one; :class:`Watched` counts the comparisons in it.
    """
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
    finally:
        sys.settrace(before)
    return count


class Watched(int):
    """An integer that counts comparisons and hashes of integers, inside built-ins too."""

    touched = 0

    def __eq__(self, other: object) -> bool:
        Watched.touched += 1
        return int(self) == other

    def __lt__(self, other: int) -> bool:
        Watched.touched += 1
        return int(self) < int(other)

    def __gt__(self, other: int) -> bool:
        Watched.touched += 1
        return int(self) > int(other)

    def __neg__(self) -> Watched:
        return Watched(-int(self))

    def __hash__(self) -> int:
        Watched.touched += 1
        return hash(int(self))
