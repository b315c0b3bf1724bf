"""The output of a request does not depend on the schedule, and no block leaks."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paged_core.plugins.registry import Registry
from paged_core.request import FinishReason
from paged_testing.doubles import FailingExecutor
from paged_testing.engines import build_memory_engine, engine_settings, serve
from paged_testing.served import check_nothing_leaked, check_said, check_served
from paged_testing.workloads import Workload, simple_request, workloads
from properties.profile import profile

REGISTRY = Registry.discover()


def check(values: dict[str, Any], workload: Workload) -> None:
    engine = build_memory_engine(REGISTRY, **values)
    check_served(engine, workload, serve(engine, workload))


@given(engine_settings(REGISTRY), workloads())
@profile(200)
def test_text_does_not_depend_on_the_schedule(values: dict[str, Any], workload: Workload) -> None:
    check(values, workload)


@pytest.mark.slow
@given(engine_settings(REGISTRY), workloads(max_requests=12))
@profile(10_000)
def test_text_does_not_depend_on_the_schedule_for_long(
    values: dict[str, Any], workload: Workload
) -> None:
    check(values, workload)


def check_with_failures(
    values: dict[str, Any], workload: Workload, before: set[int], after: set[int]
) -> None:
    """Steps that fail end only their own requests; the others keep the output they have alone."""
    engine = build_memory_engine(REGISTRY, **values)
    FailingExecutor.install(engine, before=before, after=after)
    for group in serve(engine, workload).values():
        check_said(engine, group)
        for sequence in group.sequences:
            if sequence.finish_reason is FinishReason.ERROR:
                assert sequence.error is not None
                assert "on purpose" in sequence.error or "StepFailure" in sequence.error
    check_nothing_leaked(engine)


@given(
    engine_settings(REGISTRY),
    workloads(),
    st.sets(st.integers(0, 20), max_size=4),
    st.sets(st.integers(0, 20), max_size=4),
)
@profile(100)
def test_failing_steps_end_only_their_own_requests(
    values: dict[str, Any], workload: Workload, before: set[int], after: set[int]
) -> None:
    check_with_failures(values, workload, before, after)


@pytest.mark.slow
@given(
    engine_settings(REGISTRY),
    workloads(max_requests=10, max_aborts=4),
    st.sets(st.integers(0, 40), max_size=8),
    st.sets(st.integers(0, 40), max_size=8),
)
@profile(5000)
def test_failing_steps_end_only_their_own_requests_for_long(
    values: dict[str, Any], workload: Workload, before: set[int], after: set[int]
) -> None:
    check_with_failures(values, workload, before, after)


class TestHardWorkloads:
    """What once went wrong."""

    def test_a_swapped_request_that_needs_what_the_watermark_keeps_free(self) -> None:
        values: dict[str, Any] = {
            "block_allocator": "uncached",
            "queue_order": "priority",
            "scheduler": {"name": "prefill_or_decode", "max_num_seqs": 3},
            "preemption": "swap",
            "block_size": 1,
            "num_blocks": 10,
            "num_host_blocks": 30,
            "watermark": 0.1,
        }
        workload = Workload(
            ((0, simple_request("A", 9, 2, priority=1)), (1, simple_request("B", 1, 1)))
        )
        check(values, workload)

    def test_a_copied_block_is_swapped_over_when_its_copy_is_adopted(self) -> None:
        """The fork's copy and its source become equal, and the source is free for a swap-in."""
        values: dict[str, Any] = {
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
        }
        tiny = [(0, simple_request(f"r{number}", (0,), 1)) for number in (1, 2, 3, 4)]
        workload = Workload(
            (
                (1, simple_request("r0", (0, 0), 2, n=2)),
                *tiny,
                (0, simple_request("r5", (0, 0, 0, 0, 0), 6)),
                *((0, simple_request(f"r{number}", (0,), 1)) for number in (6, 7, 8)),
                (0, simple_request("r9", (0,), 4)),
            )
        )
        check(values, workload)

    def test_a_prompt_larger_than_the_budget_that_is_alone_and_may_not_be_chunked(self) -> None:
        """The limit for long prompts lets it run beside others; alone that limit is off."""
        values: dict[str, Any] = {
            "scheduler": {
                "name": "token_budget",
                "max_num_batched_tokens": 3,
                "chunked_prefill": False,
                "long_prefill_token_threshold": 2,
            },
        }
        check(values, Workload(((0, simple_request("A", 4, 3)),)))

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
