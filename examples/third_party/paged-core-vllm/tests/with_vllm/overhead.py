"""CPU time of vLLM's ``schedule()`` and ``update_from_output()`` with 256 running, 64 waiting.

``python overhead.py`` prints the quartiles of interleaved steps, by components.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median, quantiles
from tempfile import mkdtemp
from typing import Any

from driver import Driver

NUM_RUNNING, NUM_WAITING, ROUNDS = 256, 64, 30
SETTINGS = {
    "block_size": 16,
    "num_blocks": 40_000,
    "max_model_len": 4096,
    "watermark": 0.0,
    "block_allocator": "hash_cached",
    "queue_order": "fcfs",
    "scheduler": {
        "max_num_batched_tokens": 65_536,
        "max_num_seqs": NUM_RUNNING,
        "chunked_prefill": True,
        "long_prefill_token_threshold": 0,
        "reserve_full_sequence": False,
    },
}
ARMS: Mapping[str, Mapping[str, Any] | None] = {
    "vLLM's own": None,
    "default": {},
    "fcfs, lru as a free list": {"replace_lru": True},
    "sjf, fewest_computed, lfu": {
        "queue_order": "sjf",
        "victim": "fewest_computed",
        "evictor": "lfu",
    },
    "fair, arc": {"queue_order": "fair", "evictor": "arc"},
    "default, recorded": {"record": str(Path(mkdtemp()) / "traffic.jsonl")},
}


def timed(driver: Driver, first: int, count: int) -> list[float]:
    """Return the seconds of CPU time that the scheduler takes of each of ``count`` steps."""
    scheduler, spent = driver.scheduler, [0.0]
    real = scheduler.schedule, scheduler.update_from_output

    def watched(method: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            started = time.thread_time()
            result = method(*args, **kwargs)
            spent[-1] += time.thread_time() - started
            return result

        return call

    scheduler.schedule, scheduler.update_from_output = map(watched, real)
    for number in range(first, first + count):
        driver.now = float(number)
        driver.step(number)
        spent.append(0.0)
    scheduler.schedule, scheduler.update_from_output = real
    return spent[:-1]


def main() -> None:
    drivers = {name: Driver({"settings": SETTINGS}, chosen) for name, chosen in ARMS.items()}
    for driver in drivers.values():
        for number in range(NUM_RUNNING + NUM_WAITING):
            asked = {"id": f"r{number}", "prompt": 150 + number % 50, "output": 3000}
            driver.add(number, asked, number * 1e-6)
        timed(driver, 0, 5)
    seconds: dict[str, list[float]] = {name: [] for name in drivers}
    for each in range(ROUNDS):  # interleaved, since other processes compute meanwhile
        for name, driver in drivers.items():
            seconds[name] += timed(driver, 5 + 10 * each, 10)
    base = median(seconds["vLLM's own"])
    for name, found in seconds.items():
        low, middle, high = (each * 1e6 for each in quantiles(found))
        more = 100 * (median(found) / base - 1)
        print(f"{name:26} {middle:6.0f} us ({more:+.1f}%); quartiles {low:.0f}, {high:.0f}")


if __name__ == "__main__":
    main()
