"""Ties of ``lru``, broken as in vLLM V0 and V1, and the last step that the former looks at."""

from __future__ import annotations

from typing import Any

import pytest

from paged_core.engine.engine import Engine
from paged_core.ids import BlockId
from paged_core.interfaces.evictor import BlockInfo, Evictor
from paged_testing.engines import build_memory_engine
from paged_testing.workloads import simple_request
from unit.engines import REGISTRY, replayed

V0: dict[str, Any] = {
    "block_allocator": {"name": "hash_cached", "merge_duplicates": True},
    "scheduler": {"name": "prefill_or_decode", "max_num_seqs": 8},
}
BY_PREFIX = {"name": "lru", "ties": "longest_prefix"}


@pytest.mark.parametrize(("ties", "cached"), [("release_order", 4), ("longest_prefix", 8)])
def test_a_scenario_that_tells_them_apart(ties: str, cached: int) -> None:
    """A and B end in the same step, A first; C takes a block of one of them; D asks for A's.

    In the order of release that is the second block of A; by the longest prefix, the fourth of B.
    """
    steps = replayed(
        {
            **V0,
            "evictor": {"name": "lru", "ties": ties},
            "num_blocks": 7,
            "block_size": 4,
            "max_model_len": 64,
        },
        {"id": "A", "prompt": "0:8", "output": 1},
        {"id": "B", "prompt": "100:116", "output": 1},
        {"id": "C", "step": 1, "prompt": 8, "output": 1},
        {"id": "D", "step": 2, "prompt": "0:9", "output": 1},
    )
    assert steps[0]["finished"] == ["A", "B"]
    assert steps[2]["cached"] == {"D": cached}


def record_added(engine: Engine) -> dict[BlockId, BlockInfo]:
    """Return what is added to the evictor of an engine, by block; filled as the engine runs."""
    evictor: Evictor = engine.kv_cache._allocator.inner._evictor  # type: ignore[attr-defined]
    added: dict[BlockId, BlockInfo] = {}
    add = evictor.add

    def record(block: BlockId, info: BlockInfo) -> None:
        added[block] = info
        add(block, info)

    evictor.add = record  # type: ignore[method-assign, assignment]
    return added


def last_steps(added: dict[BlockId, BlockInfo]) -> dict[int, int | None]:
    """The last steps of one request, by length of the prefix."""
    return {info.num_tokens: info.last_step for info in added.values()}


def engine(**settings: Any) -> Engine:
    return build_memory_engine(REGISTRY, **{**V0, "evictor": BY_PREFIX, **settings})


class TestLastStep:
    def test_of_what_is_given_up_it_is_not_the_step_of_that(self) -> None:
        """A is computed in steps 0 and 1; in step 2 a prompt takes the step for itself."""
        running = engine()
        added = record_added(running)
        running.add(simple_request("A", 4, 20))
        running.step()
        running.step()
        running.add(simple_request("B", 9, 20))
        running.step()
        running.abort("A")
        assert last_steps(added) == {4: 1}
        added.clear()
        running.abort("B")
        assert last_steps(added) == {4: 2, 8: 2}

    @pytest.mark.parametrize("preemption", ["recompute", "swap"])
    def test_of_what_is_preempted_it_is_the_last_one_before(self, preemption: str) -> None:
        """B is preempted when A takes the fifth of five blocks."""
        running = engine(num_blocks=5, preemption=preemption, num_host_blocks=8)
        added = record_added(running)
        running.add(simple_request("A", 6, 8))
        group = running.add(simple_request("B", 5, 8))
        while not added:
            running.step()
        assert not group.finished
        assert last_steps(added) == {4: running.num_steps - 2}

    def test_of_a_shared_block_it_is_the_last_of_any_that_held_it(self) -> None:
        """B finds the block of A and runs in step 2; A, which last ran in step 1, leaves last."""
        running = engine()
        added = record_added(running)
        stem = (1, 2, 3, 4)
        running.add(simple_request("A", (*stem, 5), 20))
        running.step()
        running.step()
        running.add(simple_request("B", (*stem, 6), 1))
        running.step()
        assert not added, "A still holds it"
        running.abort("A")
        assert last_steps(added) == {4: 2}


class TestContentKey:
    def test_it_outlives_an_eviction(self) -> None:
        running = build_memory_engine(REGISTRY, num_blocks=4, max_model_len=16)
        added = record_added(running)
        found = []
        for name, prompt in (("A", tuple(range(8))), ("other", 15), ("again", tuple(range(8)))):
            added.clear()
            group = running.add(simple_request(name, prompt, 1))
            running.step()
            assert group.num_cached == 0
            found.append({info.num_tokens: info.content_key for info in added.values()})
        first, between, again = found
        assert first == again
        assert len({*first.values(), *between.values()}) == 2 + 3
