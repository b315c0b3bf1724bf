"""Decisions inside vLLM beside vLLM's own, or beside paged-core's.

``python compare.py COUNT vllm|paged [KEY=VALUE...]`` prints how many random scenarios are equal.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from driver import REGISTRY, Driver
from paged_plugins.decisions.replay import replay
from paged_plugins.decisions.scenario import Scenario
from scenarios import scenario

FIRST_SEED = 100_001


def both(seed: int, policies: Mapping[str, Any], against: str) -> tuple[list[Any], list[Any]]:
    """Return the trace inside vLLM, and the one that it should equal."""
    asked = scenario(seed)
    settings = asked["settings"]
    chosen = dict(policies)
    if settings["block_allocator"] == "uncached":
        chosen = {key: chosen[key] for key in chosen.keys() - {"evictor", "replace_lru"}}
    got = Driver(asked, chosen).run(asked)
    if against == "vllm":
        return got, Driver(asked, None).run(asked)
    own = {key: value for key, value in chosen.items() if key != "replace_lru"}
    paged = Scenario.model_validate(asked | {"settings": settings | own})
    want = [{key: line[key] for key in got[0]} for line in replay(paged, REGISTRY)] if got else []
    return got, want


def first_difference(got: list[Any], want: list[Any]) -> str | None:
    """Say where two traces part; the order within a batch counts."""
    for ours, theirs in zip(got, want, strict=False):
        keys = [key for key in ours if ours[key] != theirs[key]]
        if list(ours["scheduled"]) != list(theirs["scheduled"]):
            keys.append("order of scheduled")
        if keys:
            return f"step {ours['step']}: {', '.join(keys)}"
    return None if len(got) == len(want) else f"{len(got)} steps, not {len(want)}"


def different(
    count: int, against: str, policies: Mapping[str, Any], seen: Counter[str] | None = None
) -> Iterator[str]:
    """Yield a line for each scenario of which the traces differ; ``seen`` counts what came up."""
    for seed in range(FIRST_SEED, FIRST_SEED + count):
        got, want = both(seed, policies, against)
        if seen is not None:
            seen["with preemptions"] += any(line["preempted"] for line in got)
            seen["with hits"] += any(any(line["cached"].values()) for line in got)
        if (found := first_difference(got, want)) is not None:
            yield f"{seed}: {found}"


def parsed(pairs: list[str]) -> dict[str, Any]:
    """Return settings from KEY=VALUE; a value may be JSON."""
    split = (pair.split("=", 1) for pair in pairs)
    return {key: json.loads(v) if v[0] == "{" or v == "true" else v for key, v in split}


if __name__ == "__main__":
    count, against, *pairs = sys.argv[1:]
    seen: Counter[str] = Counter()
    found = list(different(int(count), against, parsed(pairs), seen))
    print(
        f"{' '.join(pairs) or 'default'} against {against}: {int(count) - len(found)} of {count} "
        f"equal; {dict(seen)}; {found[:4]}"
    )
