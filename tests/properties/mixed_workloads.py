"""Deterministic workloads by number, with requests of every kind."""

from __future__ import annotations

from random import Random
from typing import Any

from paged_core.request import Request
from paged_core.sampling_params import SamplingParams
from paged_testing.workloads import Workload

ASKED: tuple[dict[str, Any], ...] = (
    {},
    {},
    {"temperature": 1.0},
    {"n": 3, "temperature": 1.0},
    {"n": 2, "best_of": 3, "temperature": 1.0},
    {"n": 2, "beam_width": 3},
)
"""Sampling parameters of the requests, besides the length."""


def mixed_workload(number: int, num_requests: int = 10) -> Workload:
    """Requests that share prefixes, arrive within a few steps, and need more blocks than there are.

    The first is long and ends last, the second has two sequences; one or two are aborted.
    """
    random = Random(number)
    stems = [[random.randrange(2) for _ in range(12)] for _ in range(2)]
    arrivals = []
    for index in range(num_requests):
        prompt = random.choice(stems)[: random.randint(0, 12)]
        prompt += [random.randrange(2) for _ in range(random.randint(1, 6))]
        asked = {"n": 2} if index == 1 else random.choice(ASKED)
        sampling = SamplingParams(max_tokens=24 if index == 0 else random.randint(1, 14), **asked)
        request = Request(
            id=f"r{index}",
            prompt=tuple(prompt),
            sampling=sampling,
            priority=random.randrange(3),
            arrival=float(index),
            cache_salt=random.choice((None, None, "salt")),
            tenant=random.choice(("", "a", "b")),
            deadline=random.choice((None, 5.0, 50.0)),
        )
        arrivals.append((random.randint(0, 6), request))
    aborts = [
        (random.randint(0, 15), f"r{random.randrange(2, num_requests)}")
        for _ in range(random.randint(1, 2))
    ]
    return Workload(tuple(arrivals), tuple(aborts))
