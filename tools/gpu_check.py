"""Builds, checks and times everything that needs a GPU, and writes one file of JSON.

    python3 tools/gpu_check.py [--wheels FOLDER] [--output FILE] [--only STAGE,...] [--cpu]

Nothing is installed: the packages are imported from this checkout, and what this Python lacks from
wheels in a folder. Exit status 1 if a stage failed, ran out of time, or was not run.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

from gpu_session import Session, main
from model_shape import write_shape
from offline import ROOT
from stages import Stage, options

SECONDS = 450.0
ANSWER = "A block table maps the logical blocks of a sequence to physical blocks"
"""What the demo model answers, in any dtype."""

ALONE = {"test_bench_on_cuda.py", "test_cuda.py", "test_local_executor.py"}
"""Tests that another process on the GPU would disturb."""
WORKERS = 6
"""Processes for the other tests; most of their time is compiling."""


def run(session: Session) -> None:
    """Run the stages; what matters most comes first, because there is a deadline."""
    session.run(Stage("doctor", ["-m", "paged_core", "doctor", "--output", "{result}"], 60))
    built = session.run(build(session))
    first, *others = attention(session)
    folder = write_shape(session.folder / "qwen3", tiny=session.cpu)
    for stage in (
        first,
        *engines(session, served(built)),
        *model(session, str(folder)),
        *tests(),
        *others,
    ):
        session.run(stage)


def served(built: Any) -> list[str]:
    """Return the names of the attention components that attended when they were built."""
    rows = built["rows"] if built else []
    return list(dict.fromkeys(row["component"] for row in rows if "error" not in row))


def build(session: Session) -> Stage:
    """Compile every kernel: each component attends once in each way."""
    small = options("--batch 2x17 --batch 1x0+33 --layers 1 --repeats 1 --no-roofline")
    return session.bench("build", 150, "attention", *small, *heads(session))


def tests() -> Iterator[Stage]:
    """The tests that need a GPU, several at once except those that look at its memory or its
    clock; without a GPU, they are skipped."""
    how = options("-m pytest -q --tb=short -p no:cacheprovider")
    files = sorted((ROOT / "tests" / "gpu").glob("test_*.py"))
    alone = [str(file) for file in files if file.name in ALONE]
    others = [str(file) for file in files if file.name not in ALONE]
    many = ["-n", str(WORKERS)] if find_spec("xdist") is not None else []
    yield Stage("conformance", [*how, *many, *others], 180)
    yield Stage("tests alone", [*how, *alone], 90)


def attention(session: Session) -> Iterator[Stage]:
    """The attention of a layer, over a grid; then of other heads, with pages of 256, and with 8-bit
    floats."""
    decode, prefill = ["64x4095", "256x1023", "8x16383"], ["1x0+4096", "8x0+1024", "8x2048+512"]
    others = options("--heads 32:8:128 --heads 16:8:64")
    own = heads(session)
    if session.cpu:
        decode, prefill = ["4x63"], ["1x0+32"]
        own += options("--layers 2 --no-roofline")
        others = own
    grid = batches(*decode, *prefill)
    short = batches(decode[0], prefill[0])
    yield session.bench("attention", 110, "attention", *grid, *own, "--bare")
    yield session.bench("attention heads", 60, "attention", *short, *others)
    pages = options("--block-size 256 --bare")
    yield session.bench("attention pages", 60, "attention", *short, *own, *pages)
    cache = options("--kv-cache-dtype fp8_e4m3")
    yield session.bench("attention float8", 60, "attention", *short, *own, *cache)


def engines(session: Session, backends: list[str]) -> Iterator[Stage]:
    """The demo model, on each attention component."""
    for name in backends:
        arguments = ["-m", "paged_core", "generate", "What is a block table?", "--attention", name]
        yield Stage(f"engine {name}", [*arguments, *session.device], 40, ANSWER)


def model(session: Session, folder: str) -> Iterator[Stage]:
    """A model of the shape of Qwen3-0.6B: many requests end to end, and steps of decoding."""
    requests = options("--num-requests 256 --input-len 100:1024 --output-len 64:128")
    batch = options("--batch-size 256 --context 1024")
    if session.cpu:
        requests = options("--num-requests 3 --input-len 4:16 --output-len 2:4 --no-roofline")
        batch = options("--batch-size 4 --context 32 --steps 2 --num-blocks 64 --no-roofline")
    chosen = ["--model", folder, *options("--runner native --runner.weights random")]
    yield session.bench("decode", 60, "decode", *chosen, *batch)
    yield session.bench("throughput", 90, "throughput", *chosen, *requests, "--repeats", "1")


def batches(*texts: str) -> list[str]:
    """Return the options that name these batches."""
    return [part for text in texts for part in ("--batch", text)]


def heads(session: Session) -> list[str]:
    """Return the option that names the heads of the shape that is measured."""
    return ["--heads", "4:2:16" if session.cpu else "16:8:128"]


if __name__ == "__main__":
    main("gpu-check", SECONDS, run)
