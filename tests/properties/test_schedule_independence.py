"""The output of a request does not depend on the schedule, and no block leaks.

Whatever the policies are, with steps planned ahead, quanta and beam searches, and where steps fail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import strategies as st

from paged_core.engine.engine import Engine
from paged_core.errors import RequestError
from paged_core.plugins.component import ComponentSettings
from paged_core.plugins.registry import Registry
from paged_core.request import Request
from paged_core.sampling_params import SamplingParams
from paged_core.sequence import SequenceGroup
from paged_policies.orders.mlfq import MlfqSettings
from paged_policies.schedulers.iteration_level import IterationLevelSettings
from paged_policies.schedulers.prefill_or_decode import PrefillOrDecodeSettings
from paged_policies.schedulers.token_budget import TokenBudgetSettings
from paged_testing.doubles import (
    ALWAYS_OVER,
    AlwaysOverSettings,
    BackgroundExecutor,
    FailingExecutor,
)
from paged_testing.engines import build_memory_engine, engine_settings, serve
from paged_testing.scheduler import check_after_failures
from paged_testing.served import check_served
from paged_testing.workloads import Workload, requests, simple_request, workloads
from properties.profile import Length, lengths
from unit.engines import REGISTRY

WITH_QUANTA = REGISTRY.extended(ALWAYS_OVER)
MAX_STEPS = 5000
"""Enough even if a prompt is recomputed for every token, in chunks of a few tokens."""
SCHEDULERS: tuple[ComponentSettings, ...] = (
    TokenBudgetSettings(),
    PrefillOrDecodeSettings(),
    IterationLevelSettings(),
)
ORDERS: tuple[ComponentSettings, ...] = (
    MlfqSettings(first_quantum=1),
    MlfqSettings(first_quantum=3),
    AlwaysOverSettings(waiting_first=True),
)


@st.composite
def settings_with_quanta(draw: st.DrawFn) -> dict[str, Any]:
    """Settings of small engines with quanta."""
    order, scheduler = draw(st.sampled_from(ORDERS)), draw(st.sampled_from(SCHEDULERS))
    fixed = {"queue_order": order, "scheduler": scheduler}
    values: dict[str, Any] = draw(engine_settings(WITH_QUANTA, fixed))
    return values


@st.composite
def searches(draw: st.DrawFn, number: int) -> Request:
    width = draw(st.integers(1, 4))
    sampling = SamplingParams(
        n=draw(st.integers(1, width)),
        beam_width=width,
        length_penalty=draw(st.sampled_from([1.0, 0.0, -1.0, 2.0])),
        early_stopping=draw(st.sampled_from([False, True, "never"])),
        stop_token_ids=draw(st.sampled_from([(), (3,), (1, 5)])),
        max_tokens=draw(st.integers(1, 10)),
        logprobs=draw(st.sampled_from([None, 0, 2])),
    )
    prompt = draw(st.lists(st.integers(0, 1), min_size=1, max_size=12))
    return Request(id=f"r{number}", prompt=tuple(prompt), sampling=sampling, arrival=float(number))


@st.composite
def workloads_with_searches(draw: st.DrawFn, max_requests: int, max_aborts: int) -> Workload:
    """Fewer requests, most of which are beam searches."""
    coming = []
    for number in range(draw(st.integers(1, 2 * max_requests // 3))):
        kind = draw(st.sampled_from([searches(number), searches(number), requests("r", number)]))
        coming.append((draw(st.integers(0, 6)), draw(kind)))
    ids = st.sampled_from([request.id for _, request in coming])
    aborts = draw(st.lists(st.tuples(st.integers(0, 12), ids), max_size=max_aborts))
    return Workload(tuple(coming), tuple(aborts))


@dataclass(frozen=True)
class Case:
    """A kind of engines, and what they serve."""

    settings: st.SearchStrategy[dict[str, Any]]
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Settings over those that are drawn."""
    workloads: Callable[[int, int], st.SearchStrategy[Workload]] = workloads
    registry: Registry = REGISTRY
    pins: bool = False
    """A prefix is pinned meanwhile, where it can be."""

    def engine(self, values: Mapping[str, Any], **failures: set[int]) -> Engine:
        engine = build_memory_engine(self.registry, **{**values, **self.fixed})
        if failures:
            FailingExecutor.install(engine, **failures)
        if self.fixed.get("async_scheduling"):
            BackgroundExecutor.install(engine)
        return engine

    @contextmanager
    def pinned(self, engine: Engine) -> Iterator[None]:
        """Pin a prefix, if there are pins and it can be, and release it."""
        pin = None
        with suppress(RequestError):
            pin = engine.pin((0,) * 8) if self.pins else None
        yield
        if pin is not None:
            engine.release(pin)


AHEAD = {"async_scheduling": True}
ANY = engine_settings(REGISTRY)
CASES = {
    "plain": Case(ANY),
    "planned ahead": Case(ANY, AHEAD),
    "planned ahead without the KV cache": Case(ANY, {**AHEAD, "kv_cache": False}),
    "with quanta": Case(settings_with_quanta(), registry=WITH_QUANTA),
    "with a pinned prefix": Case(ANY, {"max_model_len": 32}, pins=True),
    "with beam searches": Case(
        ANY, {"executor": {"name": "memory", "vocab_size": 12}}, workloads_with_searches
    ),
}
cases = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


@cases
@lengths(40, 10_000)
def test_text_does_not_depend_on_the_schedule(case: Case, length: Length) -> None:
    def check(values: dict[str, Any], workload: Workload) -> None:
        engine = case.engine(values)
        with case.pinned(engine):
            groups = serve(engine, workload, max_steps=MAX_STEPS)
        check_served(engine, workload, groups)
        for group in groups.values():
            check_logprobs(group)

    length.check(check, case.settings, case.workloads(12 if length.is_long else 7, 3))


def check_logprobs(group: SequenceGroup) -> None:
    """Where they were asked for, they are those of the output, and add up."""
    for sequence in group.sequences:
        if group.request.sampling.logprobs is not None and sequence.logprobs:
            chosen = [next(iter(entry.items())) for entry in sequence.logprobs]
            assert [token for token, _ in chosen] == sequence.output
            total = sum(logprob for _, logprob in chosen)
            assert total == pytest.approx(sequence.cumulative_logprob)


@cases
@lengths(30, 5000)
def test_failing_steps_end_only_their_own_requests(case: Case, length: Length) -> None:
    def check(
        values: dict[str, Any], workload: Workload, before: set[int], after: set[int]
    ) -> None:
        engine = case.engine(values, before=before, after=after)
        with case.pinned(engine):
            groups = serve(engine, workload, max_steps=MAX_STEPS)
        check_after_failures(engine, groups.values())

    last, most = (40, 8) if length.is_long else (20, 4)
    failures = st.sets(st.integers(0, last), max_size=most)
    served = case.workloads(10 if length.is_long else 7, 4 if length.is_long else 3)
    length.check(check, case.settings, served, failures, failures)


HARD: dict[str, tuple[dict[str, Any], tuple[tuple[int, Request], ...]]] = {
    "a swapped request needs what the watermark keeps free": (
        {
            "block_allocator": "uncached",
            "queue_order": "priority",
            "scheduler": {"name": "prefill_or_decode", "max_num_seqs": 3},
            "preemption": "swap",
            "block_size": 1,
            "num_blocks": 10,
            "num_host_blocks": 30,
            "watermark": 0.1,
        },
        ((0, simple_request("A", 9, 2, priority=1)), (1, simple_request("B", 1, 1))),
    ),
    # the fork's copy and its source become equal, and the source is free for a swap-in
    "a copied block is swapped over when its copy is adopted": (
        {
            "block_allocator": {"name": "hash_cached", "merge_duplicates": True},
            "scheduler": {
                "name": "token_budget",
                "max_num_seqs": 4,
                "max_num_batched_tokens": 3,
                "reserve_full_sequence": False,
            },
            "preemption": "auto",
            "block_size": 3,
            "num_blocks": 6,
            "num_host_blocks": 4,
        },
        (
            (1, simple_request("r0", (0, 0), 2, n=2)),
            *((0, simple_request(f"r{number}", (0,), 1)) for number in (1, 2, 3, 4)),
            (0, simple_request("r5", (0, 0, 0, 0, 0), 6)),
            *((0, simple_request(f"r{number}", (0,), 1)) for number in (6, 7, 8)),
            (0, simple_request("r9", (0,), 4)),
        ),
    ),
    # steps are so small that two of its sequences have ended before the third is begun
    "a forked group is recomputed, the last sequence when the others have ended": (
        {
            "scheduler": {
                "name": "token_budget",
                "max_num_batched_tokens": 4,
                "reserve_full_sequence": False,
            },
            "evictor": "fifo",
            "block_size": 1,
            "num_blocks": 19,
        },
        ((0, simple_request("A", (0,), 7)), (0, simple_request("B", (0,) * 6, 5, n=3))),
    ),
    # the limit for long prompts lets it run beside others; alone that limit is off
    "a prompt larger than the budget is alone and may not be chunked": (
        {
            "scheduler": {
                "name": "token_budget",
                "max_num_batched_tokens": 3,
                "chunked_prefill": False,
                "long_prefill_token_threshold": 2,
            },
        },
        ((0, simple_request("A", 4, 3)),),
    ),
}


def check(values: dict[str, Any], workload: Workload) -> None:
    engine = build_memory_engine(REGISTRY, **values)
    check_served(engine, workload, serve(engine, workload))


class TestHardWorkloads:
    """Workloads that once went wrong."""

    @pytest.mark.parametrize(("values", "arrivals"), HARD.values(), ids=HARD)
    def test_where(self, values: dict[str, Any], arrivals: tuple[tuple[int, Request], ...]) -> None:
        check(values, Workload(arrivals))

    def test_a_prompt_larger_than_any_chunk_it_may_have_is_refused(self) -> None:
        values: dict[str, Any] = {
            "scheduler": {
                "name": "token_budget",
                "max_num_batched_tokens": 3,
                "chunked_prefill": False,
                "long_prefill_token_threshold": 5,
            },
        }
        engine = build_memory_engine(REGISTRY, **values)
        groups = serve(
            engine, Workload(((0, simple_request("A", 4, 3)), (0, simple_request("B", 3, 3))))
        )
        assert list(groups) == ["B"]

    def test_a_request_that_outgrew_the_budget_is_given_up_if_nothing_of_it_is_cached(self) -> None:
        values: dict[str, Any] = {
            "scheduler": {
                "name": "token_budget",
                "max_num_batched_tokens": 4,
                "chunked_prefill": False,
                "reserve_full_sequence": False,
            },
            "block_size": 4,
            "num_blocks": 4,
        }
        requests = [simple_request(name, 3, 12) for name in "ABC"]
        workload = Workload(tuple((0, each) for each in requests))
        engine = build_memory_engine(REGISTRY, **values)
        groups = serve(engine, workload)
        check_served(engine, workload, groups)
        ends = {name: groups[name].sequences[0] for name in "ABC"}
        assert len(ends["A"].output) == 12
        assert any("outgrown" in (end.error or "") for end in ends.values())

    @pytest.mark.parametrize("scheduler", ["token_budget", "prefill_or_decode"])
    @pytest.mark.parametrize("victim", sorted(REGISTRY.of("victim")))
    def test_large_requests_that_could_take_turns_in_pushing_each_other_out(
        self, scheduler: str, victim: str
    ) -> None:
        values: dict[str, Any] = {
            "block_allocator": "uncached",
            "scheduler": {"name": scheduler},
            "victim": victim,
            "block_size": 2,
            "num_blocks": 9,
        }
        if scheduler == "token_budget":
            values["scheduler"] |= {
                "max_num_batched_tokens": 11,
                "long_prefill_token_threshold": 2,
                "reserve_full_sequence": False,
            }
        sizes = {"A": (14, 2), "B": (14, 2), "C": (16, 2), "D": (16, 2)}
        requests = [
            (i, simple_request(name, *size)) for i, (name, size) in enumerate(sizes.items())
        ]
        check(values, Workload(tuple(requests)))
