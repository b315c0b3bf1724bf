"""Builds, checks and times everything that needs a GPU: a file of JSON, a log and a page.

    python3 tools/gpu_check.py [--wheels FOLDER] [--output FILE] [--only STAGE,...]
                               [--skip STAGE,...] [--resume] [--seconds N] [--cpu]

Nothing is installed: the packages are imported from this checkout, and what this Python lacks from
wheels in a folder. Exit status 1 if a stage failed, ran out of time, or was not run.

All stages together take less than eleven minutes: what matters most comes first, a stage may take
what earlier ones left of their limits, and the last ones are not run if nothing is left. Where a
command is cut off sooner, ``--seconds`` ends this one in time, and ``--resume`` goes on with the
stages that have not passed.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import product

from gpu_bench import (
    OURS,
    attention,
    batches,
    decode,
    heads,
    model,
    others,
    ours,
    peers,
    throughput,
)
from gpu_session import Session, main
from offline import ROOT
from stages import Stage, options

SECONDS = 640.0
ANSWER = "A block table maps the logical blocks of a sequence to physical blocks"
"""Answer of the demo model, in any dtype."""
KERNELS = {
    "triton": ("attend_splits", "attend_tiles"),
    "cuda": ("paged_decode", "paged_tiles"),
}
"""The attention components whose kernels are ours, and those of decoding and of prefill."""
WORKERS = max(1, min(14, (os.cpu_count() or 2) - 2))
"""Processes at once, of those that do not disturb one another; most of their time is compiling."""
LARGE = "2_31"
"""Part of the name of a case of the conformance kit that takes much of a GPU's memory."""
_DEFINED = re.compile(r"^(?:class|def) ([Tt]est\w+)", re.M)


def run(session: Session) -> None:
    """Run the stages."""
    for stage in all_stages(session):
        session.run(stage)


def all_stages(session: Session) -> Iterator[Stage]:
    """Yield the stages, in order."""
    yield Stage("doctor", ["-m", "paged_core", "doctor", "--output", "{result}"], 15)
    yield build(session)
    yield tests("kernels", 30, "simt", "cuda_kernels")
    yield tests("executor", 90, "local_executor")
    yield from throughput(session)
    yield from decode(session)
    yield from attention(session)
    yield tests("conformance", 90, "attention", at_once=True)
    yield from engines(session)
    yield ranks(session)
    yield tests("families", 60, "families")
    yield from others(session)
    yield tests("runners", 40, "native_runner", "onnxruntime_runner", at_once=True)
    yield tests("bench", 25, "bench_on_cuda")
    yield from peers(session)
    yield from inside_vllm()
    yield from tools(session)


def inside_vllm() -> Iterator[Stage]:
    """Policies in the asynchronous scheduler of a vLLM that is installed: the same answers."""
    if find_spec("vllm") is not None:
        package = ROOT / "examples" / "third_party" / "paged-core-vllm"
        file = str(package / "tests" / "with_vllm" / "test_served.py")
        how = options("-m pytest -v --tb=short -p no:cacheprovider -k offline")
        yield Stage("policies in vLLM", [*how, file], 120)


def tests(name: str, limit: float, *files: str, at_once: bool = False) -> Stage:
    """Return a stage of files in tests/gpu; without a GPU, they are skipped.

    Args:
        at_once: run each class and each function in a process of its own; those that need much
            memory one after another in one.
    """
    how = options("-m pytest -v --tb=short -p no:cacheprovider")
    paths = [ROOT / "tests" / "gpu" / f"test_{file}.py" for file in files]
    if not at_once:
        return Stage(f"tests {name}", [*how, *map(str, paths)], limit)
    some = [f"{path}::{part}" for path in paths for part in _DEFINED.findall(path.read_text())]
    commands = [[*how, "-k", f"not {LARGE}", one] for one in some]
    if name == "conformance":
        commands.append([*how, "-k", LARGE, *map(str, paths)])
    return Stage(f"tests {name}", commands[0], limit, beside=commands[1:], workers=WORKERS)


def build(session: Session) -> Stage:
    """Compile what is tested and timed later, in a pool: each component attends once in each way,
    the demo model and the one that is measured generate, and all variants in CUDA C++ are built."""
    small = options("--batch 2x17 --batch 1x0+33 --layers 1 --repeats 1 --no-roofline")
    called = [*session.call("bench", "attention"), *small]
    if session.cpu:
        return Stage("build", [*called, *heads(session), "--output", "{result}"], 100)
    ways = [
        *("--heads 16:8:128", "--heads 32:8:128", "--heads 16:8:64"),
        *("--heads 16:8:128 --block-size 256", "--heads 16:8:128 --kv-cache-dtype fp8_e4m3"),
    ]
    steps = options("--batch-size 4 --context 600 --steps 1 --repeats 1 --no-roofline")
    steps += options("--enforce-eager --temperature 0.6")
    commands = [[str(ROOT / "tools" / "gpu_variants.py"), str(WORKERS)]]
    commands += [
        [*session.call("bench", "decode"), *model(session), *steps, "--attention", name]
        for name in OURS
    ]
    commands += [[*called, "--backends", name, *options(way)] for name, way in product(OURS, ways)]
    tests = str(ROOT / "tests" / "gpu" / "test_local_executor.py")
    some = "text_is_the_same and defaults"
    commands.append([*options("-m pytest -q --tb=short -p no:cacheprovider"), tests, "-k", some])
    others = [*called, *heads(session), "--output", "{result}"]  # and the packages that there are
    return Stage("build", others, 100, beside=commands, workers=WORKERS)


def engines(session: Session) -> Iterator[Stage]:
    """The demo model, on each attention component of ours."""
    for name in ours(session):
        arguments = session.call("generate", "What is a block table?", "--attention", name)
        yield Stage(f"engine {name}", arguments, 20, ANSWER)


def ranks(session: Session) -> Stage:
    """The demo model on two ranks that share the first GPU: for its answer, and not for speed.

    NCCL takes no two ranks on one GPU, so they exchange tensors over gloo. The size of the cache is
    given, since neither rank could tell what of the memory is the other's.
    """
    arguments = ["-m", "paged_core", "generate", "What is a block table?"]
    arguments += options("--executor.name tensor_parallel --executor.ranks 2 --communicator gloo")
    arguments += ["--num-blocks", "256", "--device", "cpu" if session.cpu else "cuda:0"]
    return Stage("ranks on one GPU", arguments, 25, ANSWER)


def tools(session: Session) -> Iterator[Stage]:
    """Stages under NVIDIA's tools, where they are: a profile of each of our attention kernels in
    decoding and in prefill, and races of those in CUDA C++."""
    small = options("--layers 1 --repeats 1 --no-roofline")
    called = [*session.call("bench", "attention"), *small, *heads(session)]
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


if __name__ == "__main__":
    main("gpu-check", SECONDS, run)
