"""An engine in its own process: the child's side, which reads and writes lines of JSON.

The first line in is the task, the first line out says that the model is loaded; then each line of
items is answered with its measurement. :mod:`paged_plugins.bench.peer_process` is the other side.
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
from paged_plugins.bench.peers.peer_engine import PeerEngine, Task
from paged_plugins.bench.peers.table import OURS, PEERS
from paged_plugins.bench.turns import full_prompt, longest, rounds
from paged_plugins.bench.workloads import Item

_PR_SET_PDEATHSIG = 1


def serve(name: str) -> None:
    """Load an engine, and answer the lines of standard input until it ends."""
    _end_with_parent()
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries that print must not write between the replies

    def reply(answer: dict[str, Any]) -> None:
        replies.write(json.dumps(answer) + "\n")
        replies.flush()

    try:
        kind = (PEERS | {OURS.name: OURS})[name].kind
        engine = kind(Task(**json.loads(sys.stdin.readline())))
        facts = ("version", "vocab_size", "cache_written")
        reply({fact: getattr(engine, fact) for fact in facts})
        for line in sys.stdin:
            reply(measure(engine, [Item(**fields) for fields in json.loads(line)]))
        engine.close()
    except BrokenPipeError:
        os._exit(1)  # the parent has ended; skip the destructors of the libraries, which may print
    except Exception as error:  # noqa: BLE001 - third-party code: every error is reported
        reply({"error": f"{type(error).__name__}: {str(error)[:500]}"})


def _end_with_parent() -> None:
    """Let Linux kill this process when its parent ends, for whatever reason."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def measure(engine: PeerEngine, items: Sequence[Item]) -> dict[str, Any]:
    """Run all first turns, then all second turns, and so on.

    Returns:
        ``elapsed``, in seconds, ``peak_memory``, in bytes since the process started, and
        ``outputs``, the tokens of each item.
    """
    turns = rounds(items)
    engine.prepare(max(map(len, turns)), longest(items))
    outputs: dict[int, list[int]] = {}
    started = perf_counter()
    for turn in turns:
        due = [Item(full_prompt(items, place, outputs), items[place].num_output) for place in turn]
        outputs.update(zip(turn, engine.run(due), strict=True))
    elapsed = perf_counter() - started
    return {
        "elapsed": elapsed,
        "peak_memory": peak_memory(),
        "outputs": [outputs[place] for place in range(len(items))],
    }
