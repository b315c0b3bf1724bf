"""First-party schedulers pass the conformance class of their slot."""

from __future__ import annotations

from paged_testing import SchedulerConformance


class TestPrefillOrDecode(SchedulerConformance):
    component = "prefill_or_decode"


class TestTokenBudget(SchedulerConformance):
    component = "token_budget"


class TestIterationLevel(SchedulerConformance):
    component = "iteration_level"


class TestStaticBatch(SchedulerConformance):
    component = "static_batch"
