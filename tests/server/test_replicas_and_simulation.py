"""Real replicas and simulated ones: the same requests go to the same replicas, and find as much."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from paged_core import AsyncLLM
from paged_core.plugins.registry import Registry
from paged_core.settings.schema import settings_class
from paged_plugins.lab.cluster.simulate_cluster import simulate_cluster
from paged_plugins.workloads.request import FIRST_OWN_ID, ContentIds, Part, WorkloadRequest
from paged_plugins.workloads.serving import Arrivals
from paged_plugins.workloads.spec import parse_spec
from paged_plugins.workloads.workload import ListedWorkload
from server.served import run

pytestmark = pytest.mark.heavy

NUM_REPLICAS = 2
CONVERSATIONS = {
    "requests": 24,
    "arrivals": {"interval": 1},
    "lengths": {"prompt": {"uniform": [5, 40]}, "output": {"uniform": [2, 6]}},
    "prefixes": {
        "system": {"tokens": 96, "count": 3, "exponent": 1},
        "conversation": {"turns": {"uniform": [2, 4]}, "think": 2},
    },
}
VALUES: dict[str, Any] = {"num_blocks": 64, "threads": 1, "seed": 0}
"""Settings of each engine; the caches have to give some blocks up."""
VOCABULARY = 2048
Found = dict[str, tuple[int, int]]
"""The replica and the cached tokens of each request."""


def in_turn() -> ListedWorkload:
    """Return requests that come when the one before them has ended; made-up tokens stand for the
    answers that their prompts repeat."""
    answers, found = ContentIds(2 * FIRST_OWN_ID), list[WorkloadRequest]()
    for first in parse_spec(CONVERSATIONS, "conversations").build().draw(0):
        before: dict[str | None, tuple[Part, ...]] = {None: ()}
        for request, follows in first.links():
            prompt = (*before[follows], *request.prompt)
            before[request.id] = (*prompt, answers.take(request.output))
            found.append(replace(request, at=1000.0 * len(found), prompt=prompt, followers=()))
    return ListedWorkload("in turn", found)


def simulated(workload: ListedWorkload, router: str) -> Found:
    registry, found = Registry.discover(), Found()
    weights = {"name": "linear", "fixed": 0.001}
    settings = settings_class(registry)(
        executor="simulated", cost_model=weights, router=router, **VALUES
    )
    simulate_cluster(
        *(settings, registry, workload, 0),
        num_replicas=NUM_REPLICAS,
        on_request=lambda one, replica: found.update({one.id: (replica, one.num_cached)}),
    )
    return found


async def served(workload: ListedWorkload, router: str) -> Found:
    found = Found()
    replicas = {"count": NUM_REPLICAS, "router": router}
    llm = AsyncLLM(replicas=replicas, executor="memory", **VALUES)
    client: Any = llm.client
    async with llm:
        while client.health().reason is not None:
            await asyncio.sleep(0.05)
        arrivals = Arrivals(workload.requests, VOCABULARY)
        while (at := arrivals.next_at) is not None:
            for arrival in arrivals.due(at):
                before = [each.num_routed for each in client.replicas()]
                output = await client.generate(arrival.asked(0.0)).wait()
                now = [each.num_routed for each in client.replicas()]
                chosen = next(n for n in range(NUM_REPLICAS) if now[n] > before[n])
                found[arrival.request.id] = (chosen, output.num_cached_tokens)
    return found


@pytest.mark.parametrize(
    "router",
    [
        *(pytest.param(name, marks=pytest.mark.long) for name in ("round_robin", "session")),
        "prefix_affinity",
    ],
)
def test_what_is_simulated_is_what_real_replicas_do(router: str) -> None:
    workload = in_turn()
    real = run(served(workload, router))
    assert real == simulated(workload, router)
    assert len(real) == CONVERSATIONS["requests"]
    assert {replica for replica, _ in real.values()} == set(range(NUM_REPLICAS))
    assert any(cached for _, cached in real.values())
