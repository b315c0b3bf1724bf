"""First-party schedulers pass the conformance class of their slot."""

from __future__ import annotations

from marks import heavy, long
from paged_testing import SchedulerConformance

AT_ANY_MOMENT = ("test_aborts_at_any_moment_when", "test_steps_fail_at_any_moment_when")
INHERITED = (*AT_ANY_MOMENT, "test_plans_ahead_when")
"""Cases about code of another scheduler, which is tested there."""


@heavy(*AT_ANY_MOMENT)
class TestPrefillOrDecode(SchedulerConformance):
    component = "prefill_or_decode"


@heavy(*AT_ANY_MOMENT)
class TestTokenBudget(SchedulerConformance):
    component = "token_budget"


@long(*AT_ANY_MOMENT)
class TestTimeBudget(SchedulerConformance):
    component = "time_budget"


@long(*AT_ANY_MOMENT)
class TestPastFuture(SchedulerConformance):
    component = "past_future"
    bytes_free = 1 << 15
    """For the lengths of earlier answers, of which it remembers a window."""


@long(*INHERITED)
class TestIterationLevel(SchedulerConformance):
    """``token_budget`` with whole prompts: that option is drawn there too."""

    component = "iteration_level"


@long(*INHERITED)
class TestStaticBatch(SchedulerConformance):
    """``prefill_or_decode`` that admits between batches only."""

    component = "static_batch"
