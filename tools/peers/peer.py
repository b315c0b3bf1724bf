"""An engine in a comparison, in a process of its own: the side that runs it.

``paged-core compare --peer`` runs the scripts of this folder with the Python of the environment
that has the engine. They import the standard library and each other, and the engine's own package
when it is loaded::

    python SCRIPT check QUESTION    says what is missing
    python SCRIPT serve TASK        loads a model and completes requests

QUESTION and TASK are objects of JSON whose ``name`` is that of a class of the script. Answers are
lines of JSON. The first one of ``serve`` says that the model is loaded; then each line of items
that it reads is answered with their measurement.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from types import SimpleNamespace
from typing import Any

Task = SimpleNamespace
"""The task of an engine, with the fields of ``Load`` in
``paged_plugins.lab.tasks.peers``."""
SHORT = {"bfloat16": "bf16", "float16": "f16", "float32": "f32"}
"""Names of a dtype in other engines."""
_PR_SET_PDEATHSIG = 1
_PREPARED = "PEER_PREPARED"
"""The variable that says that the others have been set."""
_STATUS = Path("/proc/self/status")


@dataclass(frozen=True)
class Item:
    """One request: its prompt, and the number of tokens that it generates."""

    prompt: list[int]
    """Token ids; of one that follows another, only the new ones."""
    num_output: int
    follows: int | None = None
    """Index of an earlier item, whose whole prompt and answer this one continues."""


class PeerEngine(ABC):
    """An engine with its model loaded; it ignores end-of-sequence tokens.

    A subclass imports its package in ``__init__``: its static methods also run where that package
    is not installed.
    """

    package: str
    """The package that must be importable."""
    version: str
    vocab_size: int | None = None
    """Size of the vocabulary, if the engine reports it."""
    samples = False
    """True if it also decodes at temperatures above 0."""
    cache_written: bool | None = None
    """True if all of its cache was written before anything is measured; ``None``: not known."""
    times: Sequence[tuple[float, float]] | None = None
    """Seconds from the beginning of the last run at which the first and the last token of each item
    came; ``None``: not known."""

    @abstractmethod
    def __init__(self, task: Task) -> None:
        """Load the model."""

    @staticmethod
    def environment(task: Task) -> dict[str, str]:
        """Return variables that must be set before the engine's process starts."""
        return {}

    @staticmethod
    def missing(model: str, dtype: str) -> str | None:
        """Return which file is missing beside the model, and how to make it; ``None``: none."""
        return None

    @classmethod
    def problem(cls, temperature: float) -> str | None:
        """Return why it cannot decode at this temperature; ``None``: it can."""
        return "it is run greedily only" if temperature and not cls.samples else None

    def prepare(self, num_sequences: int, num_tokens: int) -> None:  # noqa: B027 - few need it
        """Prepare, unmeasured, for requests of these sizes.

        Args:
            num_sequences: requests that run at once.
            num_tokens: tokens of the longest request, prompt and output.
        """

    @abstractmethod
    def run(self, items: Sequence[Item], /) -> list[list[int]]:
        """Return the tokens that each item generates; the prompts are complete."""

    def close(self) -> None:  # noqa: B027 - few need it
        """End what would keep the process alive."""


def main(*kinds: type[PeerEngine]) -> None:
    """Run a script, which offers these engines."""
    task = Task(**json.loads(sys.argv[2]))
    kind = next(kind for kind in kinds if kind.__name__ == task.name)
    if sys.argv[1] == "serve":
        _serve(kind, task)
    else:
        found = {
            "python": sys.version_info[:2],
            "installed": find_spec(kind.package) is not None,
            "problem": kind.problem(task.temperature),
            "missing": kind.missing(task.model, task.dtype),
        }
        sys.stdout.write(json.dumps(found) + "\n")


def _serve(kind: type[PeerEngine], task: Task) -> None:
    """Load an engine, and answer the lines of standard input until it ends."""
    variables = kind.environment(task)
    if variables and _PREPARED not in os.environ:  # some are read only when a process starts
        os.execve(sys.executable, sys.orig_argv, os.environ | variables | {_PREPARED: "1"})
    _end_with_parent()
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries that print must not write between the replies

    def reply(answer: dict[str, Any]) -> None:
        replies.write(json.dumps(answer) + "\n")
        replies.flush()

    try:
        engine = kind(task)
        facts = ("version", "vocab_size", "cache_written")
        reply({fact: getattr(engine, fact) for fact in facts})
        for line in sys.stdin:
            reply(measure(engine, [Item(**fields) for fields in json.loads(line)]))
        engine.close()
    except BrokenPipeError:
        os._exit(1)  # the parent has ended; skip the destructors of the libraries, which may print
    except Exception as error:  # noqa: BLE001 - third-party code: every error is reported
        reply({"error": f"{type(error).__name__}: {str(error)[:500]}"})


def measure(engine: PeerEngine, items: Sequence[Item]) -> dict[str, Any]:
    """Run all items that follow none, then all that follow these, and so on.

    Returns:
        ``elapsed``, in seconds, ``peak_memory``, in bytes since the process started, ``outputs``,
        the tokens of each item, and ``times``: when each was asked, and when its first and its last
        token came, in seconds from the start; ``None``: not known.
    """
    turn_of: list[int] = []
    ends: list[int] = []
    for item in items:
        before = item.follows
        turn_of.append(0 if before is None else turn_of[before] + 1)
        ends.append((0 if before is None else ends[before]) + len(item.prompt) + item.num_output)
    turns = [
        [place for place, turn in enumerate(turn_of) if turn == number]
        for number in range(max(turn_of) + 1)
    ]
    engine.prepare(max(map(len, turns)), max(ends))
    texts: dict[int | None, list[int]] = {None: []}
    """Prompts and answers."""
    outputs: dict[int, list[int]] = {}
    times: dict[int, tuple[float, float, float]] = {}
    started = perf_counter()
    for turn in turns:
        prompts = [[*texts[items[place].follows], *items[place].prompt] for place in turn]
        due = [
            Item(prompt, items[place].num_output)
            for prompt, place in zip(prompts, turn, strict=True)
        ]
        begun = perf_counter() - started
        for place, prompt, output in zip(turn, prompts, engine.run(due), strict=True):
            outputs[place] = output
            texts[place] = prompt + output
        for place, (first, last) in zip(turn, engine.times or (), strict=False):
            times[place] = begun, begun + first, begun + last
    elapsed = perf_counter() - started
    return {
        "elapsed": elapsed,
        "peak_memory": _peak_memory(),
        "outputs": [outputs[place] for place in range(len(items))],
        "times": [times[place] for place in range(len(items))] if times else None,
    }


def _peak_memory() -> int:
    """Return the peak resident size in bytes since the start."""
    if _STATUS.is_file():
        lines = _STATUS.read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:"))
    import resource

    unit = 1 if sys.platform == "darwin" else 1 << 10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _end_with_parent() -> None:
    """Let Linux kill this process when its parent ends, for whatever reason."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
