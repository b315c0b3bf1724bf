"""Random scenarios: small caches, shared prefixes and aborts bring up every rule of a step."""

from __future__ import annotations

import random
from typing import Any


def _prompt(rng: random.Random, number: int, block: int, longest: int) -> int | str:
    """An own prompt, or one that begins as others do."""
    kind = rng.random()
    if kind < 0.3:
        return rng.randint(1, longest)
    family = rng.randint(0, 2)
    shared = rng.randint(1, max(1, longest // block)) * block + rng.choice(
        (0, 0, -1, 1, block // 2)
    )
    shared = max(1, min(shared, longest))
    own = rng.randint(0, max(0, longest - shared))
    start = 1_000 + family * 10_000
    ranges = f"{start}:{start + shared}"
    if own:
        first = 100_000 + number * 1_000
        ranges += f" {first}:{first + own}"
    return ranges


def length_of(prompt: int | str) -> int:
    """Return the number of tokens of a prompt."""
    if isinstance(prompt, int):
        return prompt
    ends = (part.split(":") for part in prompt.split())
    return sum(int(end) - int(begin) for begin, end in ends)


def scenario(seed: int) -> dict[str, Any]:
    """Return the scenario of a seed; equal for equal seeds."""
    rng = random.Random(seed)
    block = rng.choice((2, 4, 4, 8, 16))
    num_blocks = rng.randint(4, 24)
    length = rng.choice((block * num_blocks // 2, block * num_blocks, 3 * block * num_blocks // 2))
    max_model_len = max(8, length)
    seats = rng.randint(1, 8)
    chunked = rng.random() < 0.8
    budget = rng.randint(max(seats, 2), 64)
    if not chunked:
        budget = max(budget, max_model_len)
    longest = max(2, min(max_model_len - 1, block * num_blocks * 2 // 3))
    requests: list[dict[str, Any]] = []
    for number in range(rng.randint(2, 14)):
        prompt = _prompt(rng, number, block, longest)
        room = block * num_blocks - length_of(prompt)  # what outgrows the cache never ends in vLLM
        request: dict[str, Any] = {
            "id": f"r{number}",
            "prompt": prompt,
            "output": min(room, rng.choice((1, 2, rng.randint(1, 12), rng.randint(1, 40)))),
            "step": rng.choice((0, 0, rng.randint(0, 8), rng.randint(0, 40))),
            "priority": rng.randint(-1, 2),
            "tenant": rng.choice("abc"),
            "deadline": float(rng.randint(1, 60)),
        }
        if rng.random() < 0.1:
            request["cache_salt"] = rng.choice("xy")
        requests.append(request)
    aborts = []
    if rng.random() < 0.35:
        for request in rng.sample(requests, rng.randint(1, min(3, len(requests)))):
            aborts.append({"id": request["id"], "step": request["step"] + rng.randint(0, 15)})
    watermark = rng.choice((0.0, 0.0, 0.0, 0.05, 0.2))
    if int(watermark * (num_blocks + 1)) != int(watermark * num_blocks):
        watermark = 0.0  # vLLM counts its null block
    return {
        "name": f"random-{seed}",
        "settings": {
            "block_size": block,
            "num_blocks": num_blocks,
            "max_model_len": max_model_len,
            "block_allocator": rng.choice(("hash_cached", "hash_cached", "uncached")),
            "watermark": watermark,
            "queue_order": rng.choice(("fcfs", "fcfs", "priority")),
            "preemption": "recompute",
            "scheduler": {
                "name": "token_budget",
                "max_num_seqs": seats,
                "max_num_batched_tokens": budget,
                "chunked_prefill": chunked,
                "long_prefill_token_threshold": (
                    rng.choice((0, 0, rng.randint(1, max_model_len - 1))) if chunked else 0
                ),
                "reserve_full_sequence": rng.random() < 0.4,
            },
        },
        "requests": requests,
        "aborts": aborts,
        "max_steps": 400,
    }
