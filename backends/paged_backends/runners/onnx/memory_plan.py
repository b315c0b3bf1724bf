"""Which values between sessions may lie in the same memory: those that are never there at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence

from paged_backends.runners.onnx.session import Session, Value


def plan_memory(sessions: Sequence[Session], names: Collection[str]) -> dict[str, str]:
    """Return for each value the name of the value whose memory it takes; often its own.

    A value is there from the session that returns it, and past the attention that follows, to the
    last one that reads it. One that comes from outside has its own memory.
    """
    values: dict[str, Value] = {}
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    given: set[str] = set()
    for index, session in enumerate(sessions):
        given |= session.inputs.keys() - first.keys()
        for name in session.outputs:
            first.setdefault(name, index)
        for name, value in (*session.inputs.items(), *session.outputs.items()):
            values[name], last[name] = value, index
    places = {name: name for name in names}
    free: dict[Value, list[str]] = defaultdict(list)
    taken: list[str] = []
    for index in range(len(sessions)):
        for name in [name for name in taken if last[name] < index]:
            taken.remove(name)
            free[values[name]].append(places[name])
        for name in [name for name in names if first.get(name) == index and name not in given]:
            if free[values[name]]:
                places[name] = free[values[name]].pop()
            taken.append(name)
    return places
