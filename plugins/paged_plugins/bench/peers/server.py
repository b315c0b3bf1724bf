"""A contender's side of a comparison: lines of JSON in, lines of JSON out.

The first line in is the task, the first line out says that the model is loaded; then each line of
items is answered with what they took. :mod:`paged_plugins.bench.peer_process` is the other side.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from collections.abc import Sequence
from time import perf_counter
from typing import Any

from paged_plugins.bench.memory_peak import peak_memory
from paged_plugins.bench.peers.contender import Contender, Task
from paged_plugins.bench.peers.table import OURS, PEERS
from paged_plugins.bench.turns import full_prompt, longest, rounds
from paged_plugins.bench.workloads import Item

_PR_SET_PDEATHSIG = 1


def serve(name: str) -> None:
    """Load a contender, and answer what comes on standard input until it ends."""
    _end_with_parent()
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print does not belong among the answers

    def reply(answer: dict[str, Any]) -> None:
        replies.write(json.dumps(answer) + "\n")
        replies.flush()

    try:
        kind = (PEERS | {OURS.name: OURS})[name].kind
        contender = kind(Task(**json.loads(sys.stdin.readline())))
        reply({"version": contender.version, "vocab_size": contender.vocab_size})
        for line in sys.stdin:
            reply(measure(contender, [Item(**fields) for fields in json.loads(line)]))
    except BrokenPipeError:
        os._exit(1)  # the comparison is gone, and so is what would print more of it
    except Exception as error:  # noqa: BLE001 - another's engine: whatever it is, it is told
        reply({"error": f"{type(error).__name__}: {str(error)[:500]}"})


def _end_with_parent() -> None:
    """Let Linux end this process when the comparison ends, however that does."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def measure(contender: Contender, items: Sequence[Item]) -> dict[str, Any]:
    """Run all first turns, then all second turns, and so on.

    Returns:
        ``elapsed``, in seconds, ``peak_memory``, in bytes since the process started, and
        ``outputs``, the tokens of each item.
    """
    turns = rounds(items)
    contender.prepare(max(map(len, turns)), longest(items))
    outputs: dict[int, list[int]] = {}
    started = perf_counter()
    for turn in turns:
        due = [Item(full_prompt(items, place, outputs), items[place].num_output) for place in turn]
        outputs.update(zip(turn, contender.run(due), strict=True))
    elapsed = perf_counter() - started
    return {
        "elapsed": elapsed,
        "peak_memory": peak_memory(),
        "outputs": [outputs[place] for place in range(len(items))],
    }
