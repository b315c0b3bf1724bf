"""The clairvoyant evictor: the future that it is given, and its refusal to run without one."""

from __future__ import annotations

from typing import Any

import pytest

from paged_core.engine.contexts import EvictorContext
from paged_core.engine.wiring import build_engine
from paged_core.errors import SettingsError
from paged_core.ids import BlockId
from paged_core.interfaces.evictor import BlockInfo, Evictor
from paged_core.request import Request
from paged_core.requests.lookup_oracle import LookupOracle
from paged_core.settings.schema import settings_class
from paged_plugins.decisions.replay import replay
from paged_plugins.decisions.scenario import Scenario
from paged_plugins.workloads.rehearsal import LookUps
from paged_testing.engines import build_memory_engine, serve
from paged_testing.workloads import Workload
from unit.engines import REGISTRY


class TestFuture:
    def test_the_next_use_is_the_next_request_that_asks(self) -> None:
        future = LookupOracle([[1, 2], [3], [1]])
        assert [future.next_use(key) for key in (1, 2, 3)] == [0, 0, 1]
        future.reach(1)
        assert [future.next_use(key) for key in (1, 2, 3)] == [2, None, 1]
        future.reach(3)
        assert [future.next_use(key) for key in (1, 2, 3)] == [None, None, None]

    def test_a_prompt_asks_for_whole_blocks_before_its_last_token(self) -> None:
        prompts = [tuple(range(length)) for length in (3, 4, 5, 8, 9)]
        requests = [Request(id=str(len(prompt)), prompt=prompt) for prompt in prompts]
        look_ups = looked_up(requests)
        assert [len(keys) for keys in look_ups.values()] == [0, 0, 1, 1, 2]
        assert len({key for keys in look_ups.values() for key in keys}) == 2

    def test_a_salt_asks_for_other_content(self) -> None:
        prompt = tuple(range(5))
        salted = Request(id="salted", prompt=prompt, cache_salt="salt")
        plain, other = looked_up([Request(id="plain", prompt=prompt), salted]).values()
        assert len(plain) == len(other) == 1
        assert plain != other


def looked_up(requests: list[Request]) -> dict[str, list[int]]:
    """The content that requests look up, in blocks of four tokens."""
    look_ups = LookUps(4)
    engine = build_memory_engine(REGISTRY, observers=[look_ups])
    serve(engine, Workload(tuple((0, each) for each in requests)))
    return look_ups.found


def made(future: LookupOracle) -> Evictor:
    component = REGISTRY.get("evictor", "belady")
    context = EvictorContext(num_blocks=8, block_size=4, seed=0, future=future)
    evictor: Evictor = component.load()(component.settings(), context)
    return evictor


def test_a_block_whose_request_passes_without_taking_it_is_ranked_anew() -> None:
    future = LookupOracle([[1], [2], [3], [2]])
    evictor = made(future)
    for key in (1, 2, 3):
        evictor.add(BlockId(key), BlockInfo(4, 0, key, key, key))
    future.reach(2)
    assert [evictor.evict() for _ in range(3)] == [1, 2, 3]


def test_a_live_engine_is_refused_with_a_reason_and_a_remedy() -> None:
    settings = settings_class(REGISTRY)(executor="memory", evictor="belady")
    with pytest.raises(SettingsError, match=r"evictor 'belady' needs .*; .* set evictor to"):
        build_engine(settings, REGISTRY)


def scenario(evictor: str, prompts: list[str], **settings: Any) -> Scenario:
    """One request at a time, two steps each, in a pool for three prompts and a half."""
    return Scenario.model_validate(
        {
            "name": "prompts",
            "settings": {"evictor": evictor, "num_blocks": 7, "block_size": 4, **settings},
            "requests": [
                {"id": f"r{number}", "step": 2 * number, "prompt": prompt, "output": 1}
                for number, prompt in enumerate(prompts)
            ],
        }
    )


def num_cached(evictor: str, prompts: list[str], **settings: Any) -> int:
    trace = replay(scenario(evictor, prompts, **settings), REGISTRY)
    return sum(sum(line["cached"].values()) for line in trace)


CYCLE = ["0:9", "100:109", "200:209", "300:309"] * 4


@pytest.mark.parametrize("scheduler", ["token_budget", "prefill_or_decode"])
def test_a_replay_tells_it_what_is_to_come(scheduler: str) -> None:
    """Four prompts in turn, of two whole blocks each: too much to keep by ``lru``."""
    known = num_cached("belady", CYCLE, scheduler=scheduler)
    assert num_cached("lru", CYCLE, scheduler=scheduler) == 0
    for other in ("mru", "fifo", "lfu", "slru", "arc", "two_q"):
        assert num_cached(other, CYCLE, scheduler=scheduler) <= known
    assert known > 0


def test_the_order_of_the_file_is_not_that_of_arrival() -> None:
    turned = scenario("belady", CYCLE)
    turned = turned.model_copy(update={"requests": tuple(reversed(turned.requests))})
    lines = list(replay(turned, REGISTRY))
    assert sum(sum(line["cached"].values()) for line in lines) == num_cached("belady", CYCLE)
