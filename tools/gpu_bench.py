"""Measures a model of the shape of Qwen3-0.6B on a GPU: its attention, steps, and many requests.

    python3 tools/gpu_bench.py [--wheels FOLDER] [--output FILE] [--only STAGE,...] [--cpu]

The requests are those of nano-vLLM's benchmark: 256, with inputs and outputs uniform in 100 to 1024
tokens, at a temperature of 0.6, ignoring end-of-sequence tokens; the weights are random. Nothing is
installed. ``gpu_check.py`` runs these stages among its own. Exit status 1 if a stage failed, ran
out of time, or was not run.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

from gpu_session import Session, main
from offline import ROOT
from random_checkpoint import write_shape
from stages import Stage, options

SECONDS = 570.0
OURS = ("triton", "cuda")
"""The attention components whose kernels are ours."""


def run(session: Session) -> None:
    """Run the stages."""
    for stages in (throughput, decode, attention, others, peers):
        for stage in stages(session):
            session.run(stage)


def throughput(session: Session) -> Iterator[Stage]:
    """Many requests to the model, end to end, with each attention component of ours."""
    requests = "--num-requests 256 --input-len 100:1024 --output-len 100:1024 --temperature 0.6"
    if session.cpu:
        requests = "--num-requests 3 --input-len 4:16 --output-len 2:4 --no-roofline"
    for name in ours(session):
        chosen = [*model(session), "--attention", name, *options(requests), "--repeats", "1"]
        yield session.bench(f"throughput {name}", 60, "throughput", *chosen)


def decode(session: Session) -> Iterator[Stage]:
    """Decode steps against the time that their bytes need, and the idle time of the GPU."""
    sizes = {"decode": "--batch-size 256", "decode 1": "--batch-size 1"}
    common = "--context 1024 --temperature 0.6"
    expected = " sizes, up to 256 sequences"  # graphs were captured
    if session.cpu:
        sizes, expected = {"decode": "--batch-size 4"}, ""
        common = "--context 32 --steps 2 --num-blocks 64 --no-roofline"
    for prefix, size in sizes.items():
        for name in ours(session):
            chosen = [*model(session), "--attention", name, *options(size), *options(common)]
            yield session.bench(f"{prefix} {name}", 25, "decode", *chosen, expected=expected)


def attention(session: Session) -> Iterator[Stage]:
    """The attention of a layer, over a grid."""
    decoded, prefilled = shapes(session)
    small = options("--layers 2 --no-roofline") if session.cpu else []
    grid = batches(*decoded, *prefilled)
    yield session.bench("attention", 45, "attention", *grid, *heads(session), *small, "--bare")


def others(session: Session) -> Iterator[Stage]:
    """The attention of other heads, with pages of 256, with 8-bit floats, and by warpgroups."""
    decoded, prefilled = shapes(session)
    short, own = batches(decoded[0], prefilled[0]), heads(session)
    ways = {
        "heads": options("--heads 32:8:128 --heads 16:8:64"),
        "pages": [*own, *options("--block-size 256 --bare")],
        "float8": [*own, *options("--kv-cache-dtype fp8_e4m3")],
    }
    if session.cpu:
        ways = {name: [*own, *options("--layers 2 --no-roofline")] for name in ways}
    for name, way in ways.items():
        yield session.bench(f"attention {name}", 15, "attention", *short, *way)
    if not session.cpu:
        tile = options("--backends cuda --attention.name cuda --attention.prefill-tile wgmma")
        yield session.bench("attention wgmma", 10, "attention", *batches(*prefilled), *own, *tile)


def peers(session: Session) -> Iterator[Stage]:
    """The same requests on this engine and on each other one, which needs a checkpoint on disk."""
    folder = str(write_shape(session.folder / "random-qwen3", tiny=session.cpu))
    yield Stage("checkpoint", [str(ROOT / "tools" / "random_checkpoint.py"), folder], 30)
    lengths = "lengths: {prompt: {uniform: [100, 1024]}, output: {uniform: [100, 1024]}}"
    fewer = "requests: 64\nlengths: {prompt: {uniform: [100, 512]}, output: {uniform: [32, 64]}}"
    how = options("--dtype bfloat16 --temperature 0.6 --one-at-a-time --seeds 1")
    found = {
        "nano_vllm": ("nanovllm", 90, f"requests: 256\n{lengths}"),
        "transformers_continuous": ("transformers", 60, fewer),
    }
    if session.cpu:
        tiny = "requests: 3\nlengths: {prompt: {uniform: [4, 16]}, output: {uniform: [2, 4]}}"
        how += options("--num-blocks 64 --kv-cache-memory 1GiB --threads 1")
        found = {"transformers_continuous": ("transformers", 60, tiny)}
    for peer, (package, limit, requests) in found.items():
        if find_spec(package) is not None:
            chosen = ["--model", folder, "--peer", peer, *how]
            yield session.compare(f"compare {peer}", limit, requests, *chosen)


def ours(session: Session) -> tuple[str, ...]:
    """Return the attention components that are measured by name."""
    return ("torch",) if session.cpu else OURS


def shapes(session: Session) -> tuple[list[str], list[str]]:
    """Return the batches that decode, and those that prefill."""
    if session.cpu:
        return ["4x63"], ["1x0+32"]
    return ["64x4095", "256x1023", "8x16383"], ["1x0+4096", "8x0+1024", "8x2048+512"]


def model(session: Session) -> list[str]:
    """Return the options that choose a model of random weights."""
    folder = str(write_shape(session.folder / "qwen3", tiny=session.cpu))
    return ["--model", folder, *options("--runner native --runner.weights random")]


def batches(*texts: str) -> list[str]:
    """Return the options that name these batches."""
    return [part for text in texts for part in ("--batch", text)]


def heads(session: Session) -> list[str]:
    """Return the option that names the heads of the shape that is measured."""
    return ["--heads", "4:2:16" if session.cpu else "16:8:128"]


if __name__ == "__main__":
    main("gpu-bench", SECONDS, run)
