"""Common parts of the GPU scripts: options, the environment, and the record of their stages.

Standard library only.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Any

from gpu_page import page
from offline import (
    ROOT,
    how_to_carry,
    install,
    missing,
    requirements,
    search_path,
    write_metadata,
)
from stages import Record, Stage, say

_PATIENCE = 5
"""Times the limits, on a CPU."""


@dataclass
class Session:
    """One run of a script."""

    record: Record
    folder: Path
    """For what it makes."""
    cpu: bool
    """True if tiny sizes run on the CPU, to try the script itself."""
    only: list[str]
    """Names of the stages to run; empty: all."""
    skip: list[str]
    """Names of those that are not."""
    problem: str | None = None
    """Why no stage can run."""
    offered: list[str] = field(default_factory=list)
    """Names of the stages that there were."""

    @property
    def device(self) -> list[str]:
        """The option that names the device."""
        return ["--device", "cpu" if self.cpu else "cuda"]

    def bench(
        self, name: str, limit: float, command: str, *options: str, expected: str = ""
    ) -> Stage:
        """Return a benchmark on the device whose result is recorded."""
        arguments = [*self.call("bench", command), *options, "--output", "{result}"]
        return Stage(name, arguments, limit, expected, measures=True)

    def call(self, *arguments: str) -> list[str]:
        """Return arguments of Python that call the program on the device."""
        return ["-m", "paged_core", *arguments, *self.device]

    def compare(self, name: str, limit: float, requests: str, *options: str) -> Stage:
        """Return a comparison with other engines on the device; its runs go into a folder.

        Args:
            requests: the workload, YAML.
        """
        words = name.replace(" ", "-")
        workload = self.folder / f"{words}.yaml"
        workload.write_text(f"name: requests\n{requests}\n", "utf-8")
        arguments = ["-m", "paged_core", "compare", str(workload), *options, *self.device]
        arguments += ["--output", str(self.record.path.parent / words)]
        return Stage(name, arguments, limit, measures=True)

    def run(self, stage: Stage) -> Any:
        """Run a stage if it is among those asked for; return its result."""
        self.offered.append(stage.name)
        if (self.only and stage.name not in self.only) or stage.name in self.skip:
            return None
        if self.problem:
            self.record.skip(stage.name, self.problem)
            return None
        if self.cpu:
            stage = replace(stage, limit=_PATIENCE * stage.limit)
        return self.record.run(stage)

    def finish(self) -> None:
        """Record the stages that were named and did not come up."""
        for name in (*self.only, *self.skip):
            if name not in self.offered:
                reason = f"there is no such stage here; there were {', '.join(self.offered)}"
                self.record.skip(name, reason)

    def prepare(self, wheels: Path | None) -> None:
        """Make the packages importable by the stages; record what is missing."""
        began = monotonic()
        entry: dict[str, Any] = {"name": "environment", "status": "passed"}
        try:
            write_metadata(self.folder / "metadata")
            if wheels is not None:
                install(wheels, self.folder / "packages")
            sys.path[:0] = search_path(self.folder)
            if absent := missing(requirements()):
                self.problem = f"this Python lacks {', '.join(absent)}"
                entry |= {"status": "failed", "tail": how_to_carry(absent)}
            elif not self.cpu and not finds_gpu():
                self.problem = "no NVIDIA GPU is found; --cpu tries the script itself on a CPU"
                entry |= {"status": "failed", "tail": self.problem}
        except SystemExit as error:
            self.problem = str(error)
            entry |= {"status": "failed", "tail": self.problem}
        self.record.add(entry | {"seconds": round(monotonic() - began, 2)})


def finds_gpu() -> bool:
    """Return whether NVIDIA's driver has a device."""
    try:
        driver, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
    except OSError:
        return False
    is_ready = driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0
    return is_ready and count.value > 0


def main(name: str, seconds: float, run: Callable[[Session], None]) -> None:
    """Run a script, and exit with 1 if a stage did not pass.

    Args:
        name: of the script, and of its file of results.
        seconds: the deadline of all stages together.
    """
    given = _options(name)
    output = given.output.absolute()
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        sys.exit(f"error: {output.parent} cannot be made ({error.strerror}); give another --output")
    folder = (given.folder or ROOT / "build" / "gpu").absolute()
    folder.mkdir(parents=True, exist_ok=True)
    facts = {
        "name": name,
        "on": "cpu" if given.cpu else "cuda",
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "platform": platform.platform(),
    }
    path = [*search_path(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    environ = os.environ | {
        "PYTHONPATH": os.pathsep.join(path),
        "PYTHONUNBUFFERED": "1",
        "COLUMNS": "160",
    }
    seconds = given.seconds or seconds * (_PATIENCE if given.cpu else 1)
    record = Record(output, folder, seconds, environ, facts, page=page)
    if given.resume:
        record.kept = _passed(output) or _passed(folder / output.name)
    session = Session(record, folder, given.cpu, _names(given.only), _names(given.skip))
    session.prepare(given.wheels)
    try:
        run(session)
        session.finish()
    finally:
        record.write()
        written = ", ".join(str(output.with_suffix(end)) for end in (".json", ".log", ".md"))
        say("\n".join(["", *record.summary(), f"written: {written}"]))
    sys.exit(0 if record.passed else 1)


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def _passed(output: Path) -> dict[str, dict[str, Any]]:
    """Return the stages that passed in an earlier run, by name."""
    if not output.is_file():
        return {}
    stages = json.loads(output.read_text("utf-8"))["stages"]
    passed = (stage for stage in stages if stage["status"] == "passed" and "command" in stage)
    return {stage["name"]: stage for stage in passed}


def _options(name: str) -> argparse.Namespace:
    folder = os.environ.get("OUT")
    wheels = os.environ.get("WHEELS")
    parser = argparse.ArgumentParser(prog=name)
    parser.add_argument(
        "--output",
        type=Path,
        default=Path(folder) if folder else ROOT / "build",
        help="the file of results, or its folder (default: $OUT, or else build)",
    )
    parser.add_argument(
        "--wheels",
        type=Path,
        default=Path(wheels) if wheels else None,
        help="a folder of wheels that this Python lacks (default: $WHEELS)",
    )
    parser.add_argument("--folder", type=Path, help="for what is made (default: build/gpu)")
    parser.add_argument("--only", default="", help="names of stages to run, comma-separated")
    parser.add_argument("--skip", default="", help="names of stages to leave out")
    parser.add_argument(
        "--resume", action="store_true", help="do not run again what passed in the file of results"
    )
    parser.add_argument("--seconds", type=float, help="the deadline of all stages together")
    parser.add_argument(
        "--cpu", action="store_true", help="tiny sizes on the CPU, to try the script itself"
    )
    given = parser.parse_args()
    if given.output.suffix != ".json":
        given.output /= f"{name}.json"
    return given
