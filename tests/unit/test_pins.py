"""Pinned prefixes: what they hold, for how long, and what they may never do."""

from __future__ import annotations

from typing import Any

import pytest

from paged_core.engine.engine import Engine
from paged_core.errors import RequestError
from paged_core.request import FinishReason
from paged_core.requests.pins import Pin, PinState
from paged_testing.doubles import FailingExecutor
from paged_testing.engines import build_memory_engine
from paged_testing.served import check_nothing_leaked, check_said
from paged_testing.workloads import simple_request
from unit.engines import REGISTRY, finish, request, run

PREFIX = tuple(range(100, 118))
"""4 whole blocks of 4, and a rest."""


def pinned(engine: Engine, tokens: tuple[int, ...] = PREFIX, **options: Any) -> Pin:
    pin = engine.pin(tokens, **options)
    while pin.state is PinState.COMPUTING:
        engine.step()
    return pin


class TestHolding:
    def test_holds_the_whole_blocks_until_released(self) -> None:
        engine = build_memory_engine()
        pin = pinned(engine)
        assert pin.state is PinState.HELD
        assert pin.num_blocks == len(pin.blocks) == 4
        assert engine.kv_cache.num_free == engine.kv_cache.num_blocks == 60
        engine.release(pin)
        assert (pin.state, pin.end_reason) == (PinState.ENDED, "released")
        assert engine.kv_cache.num_free == engine.kv_cache.num_blocks == 64
        engine.release(pin)
        assert engine.kv_cache.num_free == 64, "releasing it again changes nothing"

    @pytest.mark.parametrize(("is_held", "num_cached"), [(True, 16), (False, 0)])
    def test_requests_hit_it_after_other_prompts_have_filled_the_cache(
        self, is_held: bool, num_cached: int
    ) -> None:
        engine = build_memory_engine(num_blocks=26)
        pin = pinned(engine)
        if not is_held:
            engine.release(pin)
        for number in range(20):
            run(engine, simple_request(f"other{number}", 40, 4))
        (group,) = run(engine, request("A", (*PREFIX, 1, 2), max_tokens=4))
        assert group.num_cached == num_cached
        check_said(engine, group)

    def test_the_same_prefix_twice(self) -> None:
        engine = build_memory_engine()
        first, second = pinned(engine), pinned(engine)
        assert second.group is not None
        assert second.group.num_cached == 12, "all but the last block, which a prompt must compute"
        engine.release(first)
        (group,) = run(engine, request("A", (*PREFIX, 1)))
        assert group.num_cached == 16
        engine.release(second)
        check_nothing_leaked(engine)


class TestEnding:
    def test_a_step_releases_it_when_its_time_is_up(self) -> None:
        engine = build_memory_engine()
        start = engine.clock()
        pin = pinned(engine, ttl=5.0)
        while engine.clock() < start + 5:
            assert pin.state is PinState.HELD
            engine.step()
        engine.step()
        assert (pin.state, pin.end_reason) == (PinState.ENDED, "its time was up")
        check_nothing_leaked(engine)

    def test_time_may_be_up_before_it_is_computed(self) -> None:
        engine = build_memory_engine(
            scheduler={"name": "token_budget", "max_num_batched_tokens": 2}
        )
        pin = engine.pin(PREFIX, ttl=3.0)
        finish(engine)
        engine.step()
        assert pin.state is PinState.ENDED
        check_nothing_leaked(engine)

    @pytest.mark.parametrize("steps", [0, 2, 5, 7])
    def test_released_at_any_time(self, steps: int) -> None:
        engine = build_memory_engine(
            scheduler={"name": "token_budget", "max_num_batched_tokens": 3}
        )
        pin = engine.pin(PREFIX)
        for _ in range(steps):
            engine.step()
        engine.release(pin)
        assert not engine.has_unfinished
        check_nothing_leaked(engine)

    def test_ends_with_the_request_that_computes_it(self) -> None:
        engine = build_memory_engine()
        FailingExecutor.install(engine, before=[0])
        pin = engine.pin(PREFIX)
        finish(engine)
        assert pin.state is PinState.ENDED
        assert "StepFailure" in (pin.end_reason or "")
        check_nothing_leaked(engine)

    def test_closing_the_engine_releases_it(self) -> None:
        engine = build_memory_engine()
        held, computing = pinned(engine), engine.pin((1, 2, 3, 4))
        engine.close()
        assert held.state is computing.state is PinState.ENDED
        check_nothing_leaked(engine)


class TestRefusals:
    @pytest.mark.parametrize(
        ("allocator", "tokens", "ttl", "message"),
        [
            ("uncached", PREFIX, None, "choose block_allocator=hash_cached"),
            ("hash_cached", (1, 2, 3), None, "does not fill a block of 4"),
            ("hash_cached", PREFIX, 0, "ttl must be positive"),
        ],
    )
    def test_what_cannot_be_held(
        self, allocator: str, tokens: tuple[int, ...], ttl: float | None, message: str
    ) -> None:
        engine = build_memory_engine(block_allocator=allocator)
        with pytest.raises(RequestError, match=message):
            engine.pin(tokens, ttl=ttl)

    def test_too_little_would_be_left(self) -> None:
        """64 tokens take 16 blocks, one more token another, and V0 decodes beside a free one."""
        engine = build_memory_engine(num_blocks=21)
        with pytest.raises(RequestError, match=r"takes 4 blocks, and 3 can still be pinned"):
            engine.pin(PREFIX)
        pinned(engine, PREFIX[:12])
        with pytest.raises(RequestError, match=r"takes 1 blocks, and 0 can still be pinned"):
            engine.pin(PREFIX[:4])
        assert engine.kv_cache.num_blocks == 18

    def test_a_request_that_was_promised_more_than_would_be_left(self) -> None:
        engine = build_memory_engine(num_blocks=40, preemption="never")
        engine.add(request("A", (1,), n=3, max_tokens=48))
        with pytest.raises(RequestError, match="request 'A' could no longer run"):
            engine.pin(PREFIX)
        assert engine.kv_cache.num_blocks == 40
        finish(engine)
        check_nothing_leaked(engine)


def test_a_pin_is_released_by_its_own_engine_alone() -> None:
    ours, other = (build_memory_engine(num_blocks=40, max_model_len=32) for _ in range(2))
    pin = pinned(ours)
    other.pin(PREFIX)
    with pytest.raises(RequestError, match="'pin-0' pins a prefix in another engine"):
        other.release(pin)
    assert (pin.state, ours.kv_cache.num_pinned) == (PinState.HELD, 4)


class TestNoDeadlock:
    @pytest.mark.parametrize("scheduler", sorted(REGISTRY.of("scheduler")))
    def test_a_request_alone_runs_to_the_end(self, scheduler: str) -> None:
        engine = build_memory_engine(
            scheduler=scheduler, preemption="recompute", num_blocks=22, watermark=0.0
        )
        pinned(engine)
        for prompt in ((*PREFIX, 1), tuple(range(40))):
            (group,) = run(engine, request("A", prompt, max_tokens=100))
            assert group.sequences[0].finish_reason is FinishReason.LENGTH
            assert group.sequences[0].error is None
