"""Measures a model of the shape of Qwen3-0.6B end to end on a GPU, beside other engines.

    python3 tools/gpu_bench.py [--wheels FOLDER] [--output FILE] [--only STAGE,...] [--cpu]

The requests are those of nano-vLLM's benchmark: 256, with inputs and outputs uniform in 100 to 1024
tokens, at a temperature of 0.6, ignoring end-of-sequence tokens; the weights are random. Nothing is
installed, as for ``gpu_check.py``. Exit status 1 if a stage failed, ran out of time, or was not
run.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

from gpu_session import Session, main
from offline import ROOT
from random_checkpoint import write_shape
from stages import Stage, options

SECONDS = 570.0


def run(session: Session) -> None:
    """Run the stages: a checkpoint of random weights, decode steps, and each other engine."""
    folder = write_shape(session.folder / "random-qwen3", tiny=session.cpu)
    tool = str(ROOT / "tools" / "random_checkpoint.py")
    session.run(Stage("checkpoint", [tool, str(folder)], 90))
    for stage in (*decode(session, str(folder)), *compare(session, str(folder))):
        session.run(stage)


def decode(session: Session, folder: str) -> Iterator[Stage]:
    """Decode steps against the time that their bytes need, and the idle time of the GPU."""
    batches = {
        "decode 256": options("--batch-size 256 --context 1024 --temperature 0.6"),
        "decode 1": options("--batch-size 1 --context 1024 --temperature 0.6"),
    }
    if session.cpu:
        small = "--batch-size 4 --context 32 --steps 2 --num-blocks 64 --no-roofline"
        batches = {"decode 4": options(small)}
    for name, batch in batches.items():
        yield session.bench(name, 60, "decode", "--model", folder, *batch)


def compare(session: Session, folder: str) -> Iterator[Stage]:
    """The same requests on this engine and on another one, in one run for each other engine."""
    requests = (
        "requests: 256\nlengths: {prompt: {uniform: [100, 1024]}, output: {uniform: [100, 1024]}}"
    )
    how = options("--dtype bfloat16 --temperature 0.6 --one-at-a-time --seeds 2")
    peers = {"nano_vllm": "nanovllm", "transformers_continuous": "transformers"}
    if session.cpu:
        requests = "requests: 3\nlengths: {prompt: {uniform: [4, 16]}, output: {uniform: [2, 4]}}"
        how += options("--num-blocks 64 --kv-cache-memory 1GiB --threads 1")
        del peers["nano_vllm"]
    for peer, package in peers.items():
        if find_spec(package) is not None:
            chosen = ["--model", folder, "--peer", peer, *how]
            yield session.compare(f"compare {peer}", 400, requests, *chosen)


if __name__ == "__main__":
    main("gpu-bench", SECONDS, run)
