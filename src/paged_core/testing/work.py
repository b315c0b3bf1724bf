"""Work as a number that does not depend on the machine or on who else uses it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def work(function: Callable[[], object]) -> int:
    """Return how many instructions of Python's virtual machine a call takes.

    What happens inside a built-in counts as one; see :class:`Watched` for that.
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
    """A number that counts how often numbers are compared and hashed, inside built-ins too."""

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
