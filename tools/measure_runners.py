"""Measure runners beside each other: decode, prefill, start and memory, in processor time.

    python tools/measure_runners.py MODEL [--rounds N]

Each variant runs in a process of its own with one thread, one after another, ``--rounds`` times;
the least of its times counts. Processor time is disturbed little by other processes. MODEL is a
folder.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

VARIANTS: dict[str, dict[str, Any]] = {
    "native bfloat16": {"runner": "native", "dtype": "bfloat16"},
    "native float32": {"runner": "native", "dtype": "float32"},
    "native int8": {"runner": {"name": "native", "quantization": "int8"}, "dtype": "bfloat16"},
    "native int4": {"runner": {"name": "native", "quantization": "int4"}, "dtype": "bfloat16"},
    "onnxruntime, bfloat16 cache": {"runner": "onnxruntime", "dtype": "bfloat16"},
    "onnxruntime float32": {"runner": "onnxruntime", "dtype": "float32"},
    "onnxruntime int8": {
        "runner": {"name": "onnxruntime", "quantization": "int8"},
        "dtype": "bfloat16",
    },
    "onnxruntime int4": {
        "runner": {"name": "onnxruntime", "quantization": "int4"},
        "dtype": "bfloat16",
    },
}
STEPS = 24
DECODES, PREFILLS = (1, 16), (512, 2048)
"""Sequences of 64 tokens; tokens of one prompt."""


def measure(model: str, settings: dict[str, Any]) -> dict[str, float]:
    """Return milliseconds of processor time, seconds of the start, and MiB."""
    from paged_core import LLM, SamplingParams

    chance, found = random.Random(0), {}
    before, began, wall = _resident(), time.process_time(), time.perf_counter()
    llm = LLM(model, threads=1, num_blocks=400, **settings)
    found["start s"] = time.process_time() - began
    found["start wall s"] = time.perf_counter() - wall
    found["MiB"] = _resident() - before

    def begin(count: int, length: int, output: int) -> None:
        prompts = [[chance.randrange(3, 40_000) for _ in range(length)] for _ in range(count)]
        sampling = SamplingParams(
            temperature=0.0, max_tokens=output, ignore_eos=True, detokenize=False
        )
        llm.submit(prompts, sampling)

    def finish() -> None:
        while llm.engine.has_unfinished:
            llm.engine.step()

    begin(1, 24, 4)
    finish()
    for count in DECODES:
        begin(count, 64, STEPS + 4)
        for _ in range(3):
            llm.engine.step()
        began = time.process_time()
        for _ in range(STEPS):
            llm.engine.step()
        found[f"decode {count}"] = 1000 * (time.process_time() - began) / STEPS
        finish()
    for length in PREFILLS:
        begin(1, length, 1)
        began = time.process_time()
        finish()
        found[f"prefill {length}"] = 1000 * (time.process_time() - began)
    found["peak MiB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - before
    llm.close()
    return found


def _resident() -> float:
    """MiB."""
    import psutil

    return float(psutil.Process().memory_info().rss) / (1 << 20)


def rows(model: str, rounds: int) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield each variant and what was least of its rounds."""
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in VARIANTS}
    for _ in range(rounds):
        for name in VARIANTS:
            command = [sys.executable, __file__, model, "--variant", name]
            environ = {**os.environ, "OMP_NUM_THREADS": "1"}
            done = subprocess.run(
                command, stdout=subprocess.PIPE, text=True, check=True, env=environ
            )
            runs[name].append(json.loads(done.stdout.splitlines()[-1]))
    for name, found in runs.items():
        yield name, {key: min(run[key] for run in found) for key in found[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--variant", choices=VARIANTS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.variant:
        sys.stdout.write(f"\n{json.dumps(measure(options.model, VARIANTS[options.variant]))}\n")
        return
    for number, (name, found) in enumerate(rows(options.model, options.rounds)):
        if not number:
            sys.stdout.write(f"| | {' | '.join(found)} |\n|---|{'---:|' * len(found)}\n")
        figures = " | ".join(f"{value:.3g}" for value in found.values())
        sys.stdout.write(f"| {name} | {figures} |\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
