"""A contender in a process of its own: lines of JSON in, lines of JSON out.

Run as ``python -m paged_plugins.bench.peer_process NAME``. The first line in is the task, the first
line out says that the model is loaded; then each line of items is answered with what they took.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from time import perf_counter
from typing import Any, Self

from paged_core.cli.logs import configure_logs
from paged_core.errors import EngineError
from paged_plugins.bench.memory_peak import peak_memory
from paged_plugins.bench.peers import OURS, PEERS, Peer, Task
from paged_plugins.bench.workloads import Item


class PeerProcess:
    """One contender, from the side of whoever compares.

    Raises:
        EngineError: it cannot load the model, or dies; its own words are on standard error.
    """

    def __init__(self, peer: Peer, task: Task) -> None:
        self.name = peer.name
        started = perf_counter()
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, peer.name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": str(task.threads)},
        )
        ready = self._ask(asdict(task))
        self.version: str = ready["version"]
        self.vocab_size: int | None = ready["vocab_size"]
        self.start_seconds = perf_counter() - started

    def run(self, items: Sequence[Item]) -> dict[str, Any]:
        """Return ``elapsed``, ``peak_memory`` and ``outputs`` of completing ``items``."""
        return self._ask([asdict(item) for item in items])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def _ask(self, question: Any) -> dict[str, Any]:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            stdin.write(json.dumps(question) + "\n")
            stdin.flush()
        except BrokenPipeError:
            pass  # what it said last is below
        line = stdout.readline()
        if not line:
            raise EngineError(f"{self.name} ended with status {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise EngineError(f"{self.name}: {answer['error']}")
        return answer


def serve(name: str) -> None:
    """Answer what comes on standard input until it ends."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print does not belong among the answers
    configure_logs(None, os.environ)

    def reply(answer: dict[str, Any]) -> None:
        replies.write(json.dumps(answer) + "\n")
        replies.flush()

    peer = OURS if name == OURS.name else PEERS[name]
    try:
        contender = peer.load(Task(**json.loads(sys.stdin.readline())))
    except Exception as error:  # noqa: BLE001 - another's engine: whatever it is, it is told
        reply({"error": f"{type(error).__name__}: {str(error)[:500]}"})
        return
    reply({"version": contender.version, "vocab_size": contender.vocab_size})
    for line in sys.stdin:
        items = [Item(**fields) for fields in json.loads(line)]
        try:
            started = perf_counter()
            outputs = contender.run(items)
            elapsed = perf_counter() - started
        except Exception as error:  # noqa: BLE001 - as above
            reply({"error": f"{type(error).__name__}: {str(error)[:500]}"})
            return
        reply({"elapsed": elapsed, "peak_memory": peak_memory(), "outputs": outputs})


if __name__ == "__main__":
    serve(sys.argv[1])
