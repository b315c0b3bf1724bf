"""What every scheduler must do."""

from __future__ import annotations

from typing import Any, ClassVar

from hypothesis import strategies as st

from paged_testing.always_over_order import AlwaysOverSettings
from paged_testing.background_executor import BackgroundExecutor
from paged_testing.engine_settings import component_options, engine_settings
from paged_testing.failing_executor import FailingExecutor
from paged_testing.memory_engine import serve
from paged_testing.scheduler_cases import (
    SchedulerCases,
    check_after_failures,
    check_same,
)
from paged_testing.text_alone import check_served
from paged_testing.watched_scheduler import WatchedScheduler
from paged_testing.workload import Workload, simple_request, workloads


class SchedulerConformance(SchedulerCases):
    """Subclass it for a scheduler; override :meth:`budget` and :meth:`max_num_seqs` if its options
    for them have other names than ``max_num_batched_tokens`` and ``max_num_seqs``::

        class TestMyScheduler(SchedulerConformance):
            component = "my_scheduler"

    Every plan is checked in every test: a sequence is scheduled once and holds the blocks it needs,
    the limits are kept, and what the plan says of whole groups is what became of them.
    """

    max_examples: ClassVar[int] = 60

    def test_serves_every_workload_as_if_each_request_were_alone(self) -> None:
        def serves(values: dict[str, Any], workload: Workload) -> None:
            engine = self.make_engine(**values)
            check_served(engine, workload, serve(engine, workload))

        self.check(serves, self.engine_values(), workloads())

    def test_serves_every_workload_with_each_step_planned_ahead(self) -> None:
        """A running sequence may have nothing pending: a step under way draws its next token."""

        def serves(values: dict[str, Any], workload: Workload) -> None:
            engine = self.make_engine(**values, async_scheduling=True)
            BackgroundExecutor.install(engine)
            check_served(engine, workload, serve(engine, workload))

        self.check(serves, self.engine_values(), workloads(max_aborts=2))

    def test_survives_aborts_at_any_time(self) -> None:
        def survives(values: dict[str, Any], workload: Workload) -> None:
            engine = self.make_engine(**values)
            check_served(engine, workload, serve(engine, workload))

        self.check(survives, self.engine_values(), workloads(max_aborts=6), share=0.5)

    def test_survives_steps_that_fail(self) -> None:
        def survives(
            values: dict[str, Any], workload: Workload, before: set[int], after: set[int]
        ) -> None:
            engine = self.make_engine(**values)
            FailingExecutor.install(engine, before=before, after=after)
            check_after_failures(engine, serve(engine, workload).values())

        numbers = st.sets(st.integers(0, 20), max_size=3)
        self.check(survives, self.engine_values(), workloads(), numbers, numbers, share=0.5)

    # ------------------------------------------------------------------ orders that have quanta

    def test_requests_end_even_if_every_quantum_is_always_over(self) -> None:
        """A scheduler that ends quanta makes sure that a token is generated in each."""
        registry = self._registry_with_quanta()
        order = AlwaysOverSettings(waiting_first=True)
        workload = Workload(
            (
                (0, simple_request("A", 11, 5)),
                (1, simple_request("B", 9, 4, n=2)),
                (2, simple_request("C", 6, 4)),
                (3, simple_request("D", 10, 3)),
            )
        )

        def end(values: dict[str, Any]) -> None:
            engine = self.make_engine(registry, **values)
            check_served(engine, workload, serve(engine, workload, max_steps=2000))

        small = engine_settings(
            registry, {"scheduler": self.options, "queue_order": order}, max_blocks=12
        )
        self.check(end, small, share=2)

    def test_no_request_is_preempted_for_one_that_comes_after_it(self) -> None:
        given = {name: getattr(self.options, name) for name in self.options.model_fields_set}
        tables = component_options(type(self.options), given)
        self.check(self.check_not_preempted_for_later, tables, share=0.2)

    def test_decides_the_same_again(self) -> None:
        """Or no run could be repeated."""

        def repeats(values: dict[str, Any], workload: Workload) -> None:
            decided = []
            for _ in range(2):
                engine = self.make_engine(**values)
                serve(engine, workload)
                assert isinstance(engine.scheduler, WatchedScheduler)
                decided.append(engine.scheduler.decisions)
            check_same(*decided)

        self.check(repeats, self.engine_values(), workloads(), share=0.2)
