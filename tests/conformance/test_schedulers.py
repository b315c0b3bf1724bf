"""First-party schedulers pass the conformance class of their slot."""

from __future__ import annotations

from lanes import inherited
from paged_testing import SchedulerConformance

INHERITED = (
    "test_plans_ahead_when",
    "test_aborts_at_any_moment_when",
    "test_steps_fail_at_any_moment_when",
    "test_decides_the_same_again_when",
    "test_serves_every_workload_with_each_step_planned_ahead",
    "test_survives_aborts_at_any_time",
    "test_survives_steps_that_fail",
    "test_requests_end_even_if_every_quantum_is_always_over",
    "test_no_request_is_preempted_for_one_that_comes_after_it",
    "test_decides_the_same_again",
)
"""Cases about code of another scheduler, which is tested there."""


class TestPrefillOrDecode(SchedulerConformance):
    component = "prefill_or_decode"


class TestTokenBudget(SchedulerConformance):
    component = "token_budget"


@inherited(*INHERITED)
class TestIterationLevel(SchedulerConformance):
    """``token_budget`` with whole prompts: that option is drawn there too."""

    component = "iteration_level"


@inherited(*INHERITED)
class TestStaticBatch(SchedulerConformance):
    """``prefill_or_decode`` that admits between batches only."""

    component = "static_batch"
