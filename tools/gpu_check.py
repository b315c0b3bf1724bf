"""Builds, checks and times everything that needs a GPU, and writes one file of JSON.

    python3 tools/gpu_check.py [--wheels FOLDER] [--output FILE] [--only STAGE,...]
                               [--skip STAGE,...] [--resume] [--cpu]

Nothing is installed: the packages are imported from this checkout, and what this Python lacks from
wheels in a folder. Exit status 1 if a stage failed, ran out of time, or was not run.

The limits of all stages add up to less than ten minutes. What matters most comes first, and what is
known is printed after each stage, so that a run that is cut off has told it; ``--resume`` goes on.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from importlib.util import find_spec

from gpu_session import Session, main
from offline import ROOT
from random_checkpoint import write_shape
from stages import Stage, options

SECONDS = 540.0
ANSWER = "A block table maps the logical blocks of a sequence to physical blocks"
"""Answer of the demo model, in any dtype."""
KERNELS = {
    "triton": ("attend_splits", "attend_tiles"),
    "cuda": ("paged_decode", "paged_tiles"),
}
"""The attention components whose kernels are ours, and those of decoding and of prefill."""
OURS = tuple(KERNELS)
WORKERS = 6
"""Processes for tests that others on the GPU do not disturb; most of their time is compiling."""


def run(session: Session) -> None:
    """Run the stages."""
    for stage in all_stages(session):
        session.run(stage)


def all_stages(session: Session) -> Iterator[Stage]:
    """Yield the stages, in order."""
    folder = str(write_shape(session.folder / "qwen3", tiny=session.cpu))
    yield Stage("doctor", ["-m", "paged_core", "doctor", "--output", "{result}"], 10)
    yield tests(session, "kernels", 25, "cuda_fragments", "cuda_products", "cuda_kernels")
    yield build(session)
    yield tests(session, "conformance", 65, "attention", at_once=True)
    yield tests(session, "runners", 20, "native_runner", "onnxruntime_runner", at_once=True)
    yield tests(session, "executor", 20, "cuda", "local_executor")
    yield from engines(session)
    yield ranks(session)
    yield from attention(session)
    yield from decode(session, folder)
    yield throughput(session, folder)
    yield tests(session, "bench", 12, "bench_on_cuda")
    yield from tools(session)
    yield from peers(session)


def tests(session: Session, name: str, limit: float, *files: str, at_once: bool = False) -> Stage:
    """Return a stage of files in tests/gpu; without a GPU, they are skipped."""
    how = options("-m pytest -v --tb=short -p no:cacheprovider -o junit_family=xunit2")
    report = f"--junitxml={session.record.path.parent / f'{name}.xml'}"
    many = ["-n", str(WORKERS)] if at_once and find_spec("xdist") is not None else []
    paths = [str(ROOT / "tests" / "gpu" / f"test_{file}.py") for file in files]
    return Stage(f"tests {name}", [*how, report, *many, *paths], limit)


def build(session: Session) -> Stage:
    """Compile every kernel that is timed later: each component attends once in each way, and those
    of ours with other heads and caches beside it."""
    small = options("--batch 2x17 --batch 1x0+33 --layers 1 --repeats 1 --no-roofline")
    stage = session.bench("build", 75, "attention", *small, *heads(session))
    if session.cpu:
        return stage
    ways = ("--heads 32:8:128", "--heads 16:8:64", "--heads 16:8:128 --kv-cache-dtype fp8_e4m3")
    called = ["-m", "paged_core", "bench", "attention", *small, *session.device]
    beside = [[*called, "--backends", name, *options(way)] for name in OURS for way in ways]
    return Stage(stage.name, stage.arguments, stage.limit, beside=beside)


def engines(session: Session) -> Iterator[Stage]:
    """The demo model, on each attention component of ours."""
    for name in ["torch"] if session.cpu else OURS:
        arguments = ["-m", "paged_core", "generate", "What is a block table?", "--attention", name]
        yield Stage(f"engine {name}", [*arguments, *session.device], 12, ANSWER)


def ranks(session: Session) -> Stage:
    """The demo model on two ranks that share the first GPU: for its answer, and not for speed.

    NCCL takes no two ranks on one GPU, so they exchange tensors over gloo. The size of the cache is
    given, since neither rank could tell what of the memory is the other's.
    """
    arguments = ["-m", "paged_core", "generate", "What is a block table?"]
    arguments += options("--executor.name tensor_parallel --executor.ranks 2 --communicator gloo")
    arguments += ["--num-blocks", "256", "--device", "cpu" if session.cpu else "cuda:0"]
    return Stage("ranks on one GPU", arguments, 20, ANSWER)


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
    yield session.bench("attention", 45, "attention", *grid, *own, "--bare")
    yield session.bench("attention heads", 11, "attention", *short, *others)
    pages = options("--block-size 256 --bare")
    yield session.bench("attention pages", 12, "attention", *short, *own, *pages)
    cache = options("--kv-cache-dtype fp8_e4m3")
    yield session.bench("attention float8", 12, "attention", *short, *own, *cache)
    if not session.cpu:
        tile = options("--backends cuda --attention.name cuda --attention.prefill-tile wgmma")
        yield session.bench("attention wgmma", 8, "attention", *batches(*prefill), *own, *tile)


def decode(session: Session, folder: str) -> Iterator[Stage]:
    """Steps of decoding of a model of the shape of Qwen3-0.6B."""
    batch = options("--batch-size 256 --context 1024")
    if session.cpu:
        batch = options("--batch-size 4 --context 32 --steps 2 --num-blocks 64 --no-roofline")
    for name in ["torch"] if session.cpu else OURS:
        chosen = [*model(folder), "--attention", name]
        yield session.bench(f"decode {name}", 16, "decode", *chosen, *batch)


def throughput(session: Session, folder: str) -> Stage:
    """Many requests to that model, end to end."""
    requests = options("--num-requests 256 --input-len 100:1024 --output-len 64:128")
    if session.cpu:
        requests = options("--num-requests 3 --input-len 4:16 --output-len 2:4 --no-roofline")
    return session.bench(
        "throughput", 30, "throughput", *model(folder), *requests, "--repeats", "1"
    )


def tools(session: Session) -> Iterator[Stage]:
    """Stages under NVIDIA's tools, where they are: a profile of each of our attention kernels in
    decoding and in prefill, and races of those in CUDA C++."""
    small = options("--layers 1 --repeats 1 --no-roofline")
    called = ["-m", "paged_core", "bench", "attention", *small, *heads(session), *session.device]
    called += batches("8x1023", "1x0+512")
    stages = []
    for name, kernels in KERNELS.items():
        for kernel in kernels:
            profile = f"ncu --set basic --clock-control none --kernel-name regex:{kernel}"
            arguments = [*under(f"{profile} --launch-count 1"), *called, "--backends", name]
            stages.append(Stage(f"ncu {kernel}", arguments, 11, "Memory Throughput"))
    races = "compute-sanitizer --tool racecheck --error-exitcode 1 --kernel-name"
    arguments = [*under(f"{races} kernel_substring=paged_"), *called, "--backends", "cuda"]
    stages.append(Stage("racecheck", arguments, 15, "RACECHECK SUMMARY: 0 hazards"))
    for stage in stages:
        if shutil.which(stage.arguments[2]) is not None and not session.cpu:
            yield stage


def under(tool: str) -> list[str]:
    """Return arguments of Python that run a command of Python under a tool."""
    run = "import os, sys; os.execvp(sys.argv[1], sys.argv[1:])"
    return ["-c", run, *options(tool), sys.executable]


def peers(session: Session) -> Iterator[Stage]:
    """The same requests on this engine and on transformers' continuous batching, which needs a
    checkpoint on disk."""
    folder = str(write_shape(session.folder / "random-qwen3", tiny=session.cpu))
    yield Stage("checkpoint", [str(ROOT / "tools" / "random_checkpoint.py"), folder], 20)
    requests = "requests: 64\nlengths: {prompt: {uniform: [100, 512]}, output: {uniform: [32, 64]}}"
    how = options("--peer transformers_continuous --dtype bfloat16 --one-at-a-time --seeds 1")
    if session.cpu:
        requests = "requests: 3\nlengths: {prompt: {uniform: [4, 16]}, output: {uniform: [2, 4]}}"
        how += options("--num-blocks 64 --kv-cache-memory 1GiB --threads 1")
    yield session.compare("compare", 40, requests, "--model", folder, *how)


def model(folder: str) -> list[str]:
    """Return the options that choose a model of random weights."""
    return ["--model", folder, *options("--runner native --runner.weights random")]


def batches(*texts: str) -> list[str]:
    """Return the options that name these batches."""
    return [part for text in texts for part in ("--batch", text)]


def heads(session: Session) -> list[str]:
    """Return the option that names the heads of the shape that is measured."""
    return ["--heads", "4:2:16" if session.cpu else "16:8:128"]


if __name__ == "__main__":
    main("gpu-check", SECONDS, run)
