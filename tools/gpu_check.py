"""Builds, checks and times everything that needs a GPU, and writes one file of JSON.

    python3 tools/gpu_check.py [--wheels FOLDER] [--output FILE] [--only STAGE,...] [--cpu]

Nothing is installed: the packages are imported from this checkout, and what this Python lacks from
wheels in a folder. Exit status 1 if a stage failed, ran out of time, or was not run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpu_session import Session, main
from model_shape import write_shape
from offline import ROOT
from stages import Stage

SECONDS = 450.0
ANSWER = "A block table maps the logical blocks of a sequence to physical blocks"
"""What the demo model answers, in any dtype."""


def run(session: Session) -> None:
    """Run the stages: what works here, builds, tests, attention, engines, a model of 0.6B shape."""
    session.run(Stage("doctor", ["-m", "paged_core", "doctor", "--output", "{result}"], 60))
    built = session.run(build(session))
    rest = (conformance(), *attention(session), *engines(session, served(built)))
    for stage in rest:
        session.run(stage)
    folder = write_shape(session.folder / "qwen3", tiny=session.cpu)
    for stage in model(session, str(folder)):
        session.run(stage)


def served(built: Any) -> list[str]:
    """Return the names of the attention components that attended when they were built."""
    rows = built["rows"] if built else []
    return list(dict.fromkeys(row["component"] for row in rows if "error" not in row))


def build(session: Session) -> Stage:
    """Compile every kernel: each component attends once in each way."""
    sizes = ["--batch", "2x17", "--batch", "1x0+33"]
    sizes += ["--layers", "1", "--repeats", "1", "--no-roofline"]
    return bench(session, "build", 150, "attention", *sizes, *heads(session))


def conformance() -> Stage:
    """The tests that need a GPU; without one, they are skipped."""
    arguments = [
        "-m",
        "pytest",
        "-q",
        "--tb=short",
        "-p",
        "no:cacheprovider",
        str(ROOT / "tests" / "gpu"),
    ]
    return Stage("conformance", arguments, 180)


def attention(session: Session) -> Iterator[Stage]:
    """The attention of a layer, over a grid; then with pages of 256, and with 8-bit floats."""
    decode = ["64x4095", "256x1023", "8x16383"] if not session.cpu else ["4x63"]
    prefill = ["1x0+4096", "8x0+1024", "8x2048+512"] if not session.cpu else ["1x0+32"]
    grid = [part for text in decode + prefill for part in ("--batch", text)]
    first = [part for text in (decode[0], prefill[0]) for part in ("--batch", text)]
    own = heads(session)
    more = [] if session.cpu else ["--heads", "32:8:128", "--heads", "16:8:64"]
    if session.cpu:
        own += ["--layers", "2", "--no-roofline"]
        more += own
    yield bench(session, "attention", 110, "attention", "--bare", *grid, *own)
    yield bench(session, "attention heads", 60, "attention", *first, *more)
    pages = ["--block-size", "256", "--bare"]
    yield bench(session, "attention pages", 60, "attention", *first, *own, *pages)
    cache = ["--kv-cache-dtype", "fp8_e4m3"]
    yield bench(session, "attention float8", 60, "attention", *first, *own, *cache)


def engines(session: Session, backends: list[str]) -> Iterator[Stage]:
    """The demo model, on each attention component."""
    for name in backends:
        arguments = ["-m", "paged_core", "generate", "What is a block table?", "--attention", name]
        yield Stage(f"engine {name}", [*arguments, *session.device], 40, ANSWER)


def model(session: Session, folder: str) -> Iterator[Stage]:
    """A model of the shape of Qwen3-0.6B: many requests end to end, and steps of decoding."""
    chosen = ["--model", folder, "--runner", "native", "--runner.weights", "random"]
    requests = ["--num-requests", "256", "--input-len", "100:1024", "--output-len", "64:128"]
    batch = ["--batch-size", "256", "--context", "1024"]
    if session.cpu:
        requests = [
            "--num-requests",
            "3",
            "--input-len",
            "4:16",
            "--output-len",
            "2:4",
            "--no-roofline",
        ]
        batch = [
            "--batch-size",
            "4",
            "--context",
            "32",
            "--steps",
            "2",
            "--num-blocks",
            "64",
            "--no-roofline",
        ]
    repeats = ["--repeats", "1"]
    yield bench(session, "throughput", 90, "throughput", *chosen, *requests, *repeats)
    yield bench(session, "decode", 60, "decode", *chosen, *batch)


def bench(session: Session, name: str, limit: float, command: str, *options: str) -> Stage:
    """A benchmark whose result is recorded."""
    arguments = ["-m", "paged_core", "bench", command, *options, *session.device]
    return Stage(name, [*arguments, "--output", "{result}"], limit)


def heads(session: Session) -> list[str]:
    """The heads of the shape that is measured."""
    return ["--heads", "4:2:16" if session.cpu else "16:8:128"]


if __name__ == "__main__":
    main("gpu-check", SECONDS, run)
