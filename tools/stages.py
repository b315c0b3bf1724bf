"""Runs commands one after another, each within a time limit, and records what came of them.

Standard library only. A stage that fails does not stop the others; the record is written after
every stage, so that it is there whatever happens later.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, sleep
from typing import IO, Any

_TAIL = 8000
_SHOWN = 2500
"""Characters of a stage's output that are recorded, and that are printed."""
_LEAST = 5.0
"""Seconds under which no stage is started."""


@dataclass(frozen=True)
class Stage:
    """A command of this Python, and how long it may take."""

    name: str
    arguments: Sequence[str]
    """Arguments of the interpreter; ``{result}`` stands for the file that it writes, JSON or lines
    of JSON, to be put into the record."""
    limit: float
    """Seconds."""
    expected: str = ""
    """Text that its output must contain."""
    beside: Sequence[Sequence[str]] = ()
    """Other commands, run at the same time; all must pass. They write no result."""
    workers: int = 64
    """Commands that run at once."""
    measures: bool = False
    """True if the end of its output is a table of what it measured, to be shown."""


@dataclass
class Record:
    """The file that is written: facts, and an entry per stage."""

    path: Path
    folder: Path
    """For the results of stages, and a copy of the record."""
    seconds: float
    """The deadline, in seconds from now, of all stages together."""
    environ: Mapping[str, str]
    facts: dict[str, Any]
    stages: list[dict[str, Any]] = field(default_factory=list)
    kept: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Stages that passed in an earlier run, by name: they are not run again."""
    started: float = field(default_factory=monotonic)
    spare: float = 0.0
    """Seconds that stages left of their limits: a later one may take as many as its own limit."""
    page: Callable[[Mapping[str, Any]], str] | None = None
    """Makes a page of Markdown of the record, which is written beside it."""

    @property
    def log(self) -> Path:
        """The file of the whole output of all stages."""
        return self.path.with_suffix(".log")

    def run(self, stage: Stage) -> Any:
        """Run a stage and record it; return its result, ``None`` if there is none."""
        if stage.name in self.kept:
            self.add(self.kept[stage.name])
            return self.kept[stage.name]["result"]
        patience = stage.limit + min(self.spare, stage.limit)  # what hangs does not take all
        limit = min(patience, self.started + self.seconds - monotonic())
        entry: dict[str, Any] = {"name": stage.name, "limit_s": round(limit, 1)}
        if limit < _LEAST:
            self.add(entry | {"status": "not run", "reason": "the deadline of all stages"})
            return None
        say(f"{stage.name} ...")
        result = self.folder / f"{stage.name.replace(' ', '_')}.json"
        result.unlink(missing_ok=True)
        commands = [
            [sys.executable, *(part.replace("{result}", str(result)) for part in arguments)]
            for arguments in (stage.arguments, *stage.beside)
        ]
        began = monotonic()
        with self.log.open("ab") as log:
            log.write(f"\n===== {stage.name}\n".encode())
            log.flush()
            place = log.tell()
            status = _run(commands, log, limit, self.environ, stage.workers)
        output = self.log.read_bytes()[place:].decode("utf-8", "replace")
        found = _json(result)
        seconds = monotonic() - began
        self.spare = max(0.0, self.spare + stage.limit - seconds)
        entry |= {
            "status": _status(status, stage.expected, output),
            "exit_status": status,
            "seconds": round(seconds, 2),
            "command": commands[0][1:],
            "tail": output[-_TAIL:],
            "measures": stage.measures,
            "result": found,
        }
        self.add(entry)
        return found

    def skip(self, name: str, reason: str) -> None:
        """Record a stage that is not run."""
        self.add({"name": name, "status": "not run", "reason": reason})

    def add(self, entry: dict[str, Any]) -> None:
        """Add a stage, and write the record."""
        self.stages.append(entry)
        self.write()
        seconds = f" after {entry['seconds']} s" if "seconds" in entry else ""
        again = " in an earlier run" if entry["name"] in self.kept else ""
        say(f"{entry['name']}: {entry['status']}{seconds}{again}")
        if entry["status"] != "passed" or entry.get("measures"):
            say(entry.get("tail", entry.get("reason", ""))[-_SHOWN:])

    def summary(self) -> Iterator[str]:
        """Yield a line for every stage, and what those that measure printed."""
        for entry in self.stages:
            yield f"{entry['name']}: {entry['status']}, {entry.get('seconds', 0)} s"
            if entry.get("measures"):
                yield entry["tail"][-_SHOWN:]

    def write(self) -> None:
        """Write the record, all or nothing."""
        whole = self.facts | {
            "seconds": round(monotonic() - self.started, 2),
            "passed": self.passed,
            "stages": self.stages,
        }
        text = json.dumps(whole, indent=1) + "\n"
        for path in {self.path, self.folder / self.path.name}:
            partial = path.with_suffix(".partial")
            partial.write_text(text, "utf-8")
            partial.replace(path)
        if self.page is not None:
            self.path.with_suffix(".md").write_text(self.page(whole), "utf-8")

    @property
    def passed(self) -> bool:
        """True if every stage was run, and passed."""
        return all(entry["status"] == "passed" for entry in self.stages)


def options(text: str) -> list[str]:
    """Return the words of a command line that has no quotes."""
    return text.split()


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _status(status: int | None, expected: str, output: str) -> str:
    if status is None:
        return "timed out"
    return "passed" if status == 0 and expected in output else "failed"


def _run(
    commands: Sequence[list[str]],
    log: IO[bytes],
    limit: float,
    environ: Mapping[str, str],
    workers: int,
) -> int | None:
    """Run commands, ``workers`` at once; return the exit status of the first that fails, or else 0;
    ``None``: they ran out of time. All are killed then, with their children."""
    until = monotonic() + limit
    waiting, started = list(reversed(commands)), []
    try:
        while waiting or any(process.returncode is None for process in started):
            if monotonic() > until:
                return None
            running = sum(process.poll() is None for process in started)
            if waiting and running < workers:
                started.append(
                    subprocess.Popen(
                        waiting.pop(),
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        env=dict(environ),
                        start_new_session=True,
                    )
                )
            else:
                sleep(0.02)
        return next((process.returncode for process in started if process.returncode), 0)
    finally:
        for process in started:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _json(path: Path) -> Any:
    """Return the content of a file of JSON, or the list of its lines; ``None``: there is none."""
    if not path.is_file():
        return None
    text = path.read_text("utf-8")
    path.unlink()
    try:
        return json.loads(text)
    except ValueError:
        with suppress(ValueError):
            return [json.loads(line) for line in text.splitlines()]
    return None
