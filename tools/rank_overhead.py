"""Compares a step on two ranks of a core each with one on one rank of two threads.

    python tools/rank_overhead.py [--repeats 3] [--batch-size 16] [--context 128] [--tiny]

Both decode with random weights of the shape of Qwen3-0.6B, in turns, on an executor of the same
kind; what the ranks take longer is the cost of exchanging sums. Prints one object of JSON.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from model_shape import write_shape

RANKS = {"one rank, two threads": (1, 2), "two ranks, a thread each": (2, 1)}


def measure(folder: Path, ranks: int, threads: int, asked: argparse.Namespace) -> dict[str, Any]:
    """Return what ``bench decode`` says of so many ranks."""
    options = {
        "model": folder,
        "runner": "native",
        "runner.weights": "random",
        "num-blocks": asked.batch_size * (asked.context + 128) // 16 + 1,
        "batch-size": asked.batch_size,
        "context": asked.context,
        "steps": 4 if asked.tiny else 30,
        "repeats": 1,
        "threads": threads,
        "executor.name": "tensor_parallel",
        "executor.ranks": ranks,
        "executor.pin-cores": "true",
    }
    command = [sys.executable, "-m", "paged_core", "bench", "decode", "--json", "--no-roofline"]
    command += [part for key, value in options.items() for part in (f"--{key}", str(value))]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> None:
    """Measure in turns, and print medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--tiny", action="store_true", help="a tiny model, to try this script")
    asked = parser.parse_args()
    times: dict[str, list[float]] = {name: [] for name in RANKS}
    with TemporaryDirectory() as folder:
        shape = write_shape(Path(folder), tiny=asked.tiny)
        for _ in range(asked.repeats):
            for name, (ranks, threads) in RANKS.items():
                times[name].append(measure(shape, ranks, threads, asked)["ms_per_step"])
    one, two = (median(found) for found in times.values())
    found = {"ms_per_step": times, "overhead": round(two / one - 1, 4)}
    sys.stdout.write(f"{json.dumps(found)}\n")


if __name__ == "__main__":
    main()
