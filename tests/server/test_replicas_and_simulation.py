"""Real replicas and simulated ones: the same requests go to the same replicas, and find as much."""

from __future__ import annotations

import pytest

from paged_core.plugins.registry import Registry
from paged_core.settings.schema import settings_class
from paged_plugins.lab.calibration.calibrate import MeasuredStep
from paged_plugins.lab.cost_model import CostModelContext, StepWork
from paged_plugins.lab.cost_models.linear import LinearCost
from paged_plugins.workloads.spec import parse_spec
from unit.peer_scripts import TOOLS, script

pytestmark = pytest.mark.heavy


tool = script("replicas_and_simulation", TOOLS)

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
SMALL = 64
"""Blocks of a cache that has to give some up."""


@pytest.mark.parametrize("router", ["round_robin", "session", "prefix_affinity"])
def test_what_is_simulated_is_what_real_replicas_do(router: str) -> None:
    workload = parse_spec(CONVERSATIONS, "conversations").build()
    simulated, real = tool.compare(
        *(workload, router, NUM_REPLICAS),
        weights={"name": "linear", "fixed": 0.001},
        num_blocks=SMALL,
        in_turn=True,
    )
    assert len(real.replica_of) == CONVERSATIONS["requests"]
    assert real.replica_of == simulated.replica_of
    assert len(set(real.replica_of.values())) == NUM_REPLICAS
    cached = [{each.id: each.num_cached for each in found.requests} for found in (simulated, real)]
    assert cached[0] == cached[1]
    assert 0 < real.measure("hit_rate") < 1


def test_later_turns_repeat_the_workload_and_not_an_answer() -> None:
    workload = parse_spec(CONVERSATIONS, "conversations").build()
    firsts = list(workload.draw(0))
    times = {each.id: place for place, each in enumerate(e for f in firsts for e in f.family())}
    listed = tool.in_the_open(workload, times, 0)
    found = {each.id: each for each in listed.requests}
    assert [each.at for each in listed.requests] == sorted(times.values())
    for first in firsts:
        for request, length in first.whole_prompts():
            assert found[request.id].num_new == length
            assert not found[request.id].followers
        for request, follows in first.links():
            if follows is not None:
                before = found[follows].prompt
                assert found[request.id].prompt[: len(before)] == before


def test_what_waking_up_took_beyond_the_weights_is_simulated() -> None:
    registry = Registry.discover()
    weights = {"name": "linear", "fixed": 0.002, "per_prefill_token": 1e-4, "wake": 0.5}
    settings = settings_class(registry)(executor="simulated", cost_model=weights)
    model = LinearCost(settings.cost_model, CostModelContext(settings=settings))
    late = [0.001, 0.003, 0.004, 0.3, -0.002]
    woken = []
    for place, seconds in enumerate(late):
        work = StepWork(prefill_tokens=place, prefill_sequences=1)
        woken.append(MeasuredStep(work, model.seconds(work) + seconds))
    found = tool.with_wake(settings, woken)
    assert found.wake == pytest.approx(0.003)
    assert found.model_copy(update={"wake": 0.5}) == settings.cost_model
    assert tool.with_wake(settings, woken[-1:]).wake == 0
