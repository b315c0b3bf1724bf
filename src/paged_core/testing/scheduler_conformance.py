"""What every scheduler must do."""

from __future__ import annotations

from typing import Any, ClassVar

from hypothesis import strategies as st

from paged_core.component import ComponentSettings
from paged_core.engine import Engine
from paged_core.registry import Registry
from paged_core.request import FinishReason
from paged_core.settings import settings_class
from paged_core.testing.always_over_order import ALWAYS_OVER, AlwaysOverSettings
from paged_core.testing.background_executor import BackgroundExecutor
from paged_core.testing.component_conformance import ComponentConformance
from paged_core.testing.engine_settings import component_options, engine_settings
from paged_core.testing.failing_executor import FailingExecutor
from paged_core.testing.fits_alone import check_serves_what_fits
from paged_core.testing.memory_engine import build_memory_engine, serve
from paged_core.testing.text_alone import check_nothing_leaked, check_said, check_served
from paged_core.testing.watched_scheduler import WatchedScheduler
from paged_core.testing.workload import Workload, simple_request, workloads


class SchedulerConformance(ComponentConformance):
    """Subclass it for a scheduler; override :meth:`budget` and :meth:`max_num_seqs` if its options
    for them have other names than ``max_num_batched_tokens`` and ``max_num_seqs``::

        class TestMyScheduler(SchedulerConformance):
            component = "my_scheduler"

    Every plan is checked in every test: a sequence is scheduled once and holds the blocks it needs,
    the limits are kept, and what the plan says of whole groups is what became of them.
    """

    slot: ClassVar[str] = "scheduler"
    max_examples = 60

    def budget(self, options: ComponentSettings) -> int | None:
        """Tokens that a step may compute; ``None``: there is no limit."""
        limit: int | None = getattr(options, "max_num_batched_tokens", None)
        return limit

    def max_num_seqs(self, options: ComponentSettings) -> int | None:
        """Sequences that may run; ``None``: there is no limit."""
        limit: int | None = getattr(options, "max_num_seqs", None)
        return limit

    def make_engine(self, registry: Registry | None = None, **values: Any) -> Engine:
        """An engine without a model that has the scheduler, watched."""
        registry = registry or self.registry
        values = {"scheduler": self._table, **values}
        settings = settings_class(registry)(**values)
        engine = build_memory_engine(registry, **values)
        WatchedScheduler.install(
            engine, self.budget(settings.scheduler), self.max_num_seqs(settings.scheduler)
        )
        return engine

    def test_holds_nothing_at_first_and_plans_nothing(self) -> None:
        engine = self.make_engine()
        assert len(engine.scheduler) == 0
        plan = engine.scheduler.schedule(0.0)
        assert not plan.sequences
        assert not plan.admitted

    def test_serves_one_request(self) -> None:
        engine = self.make_engine()
        workload = Workload(((0, simple_request("A", 9, 5)),))
        check_served(engine, workload, serve(engine, workload))

    def test_refuses_nothing_that_fits_alone(self) -> None:
        budget, max_num_seqs = self.budget(self.options), self.max_num_seqs(self.options)
        check_serves_what_fits(self.make_engine(), budget, max_num_seqs)

    def test_says_what_the_prefix_cache_served(self) -> None:
        """None has to be; but tokens that are not computed are reported."""
        engine = self.make_engine(block_allocator="hash_cached")
        prompt = tuple(range(20))
        workload = Workload(
            ((0, simple_request("A", prompt, 2)), (9, simple_request("B", prompt, 2)))
        )
        check_served(engine, workload, serve(engine, workload))

    def test_decides_the_same_again(self) -> None:
        """Or no run could be repeated."""

        def repeats(values: dict[str, Any], workload: Workload) -> None:
            decided = []
            for _ in range(2):
                engine = self.make_engine(**values)
                serve(engine, workload)
                assert isinstance(engine.scheduler, WatchedScheduler)
                decided.append(engine.scheduler.decisions)
            for step, (one, other) in enumerate(zip(*decided, strict=True)):
                assert one == other, f"in step {step} it decides {other}, {one} the first time"

        self.check(repeats, self.engine_values(), workloads(), share=0.2)

    def test_keeps_within_the_length_of_the_model(self) -> None:
        engine = self.make_engine(max_model_len=32)
        assert engine.scheduler.length_cap in (32, 33)
        serve(engine, Workload(((0, simple_request("A", 9, 100)),)))
        check_nothing_leaked(engine)

    def test_runs_several_at_once(self) -> None:
        """Two small requests together take fewer steps than one after the other."""
        steps = []
        for names in ("A", "AB"):
            engine = self.make_engine()
            serve(engine, Workload(tuple((0, simple_request(n, 4, 8)) for n in names)))
            steps.append(engine.num_steps)
        assert steps[1] < 2 * steps[0]

    def test_aborts_a_request_in_any_queue(self) -> None:
        for step in range(14):
            engine = self.make_engine(num_blocks=6, num_host_blocks=12, preemption="swap")
            requests = tuple((0, simple_request(name, 7, 12)) for name in "ABC")
            for name in "ABC":
                workload = Workload(requests, ((step, name),))
                check_served(engine, workload, serve(engine, workload))

    def test_leaves_out_what_waits_for_a_step_under_way(self) -> None:
        """A running sequence with nothing pending: its group is left out, and is not disturbed."""
        engine = self.make_engine()
        group = engine.add(simple_request("A", 5, 8))
        (sequence,) = group.live
        while sequence.num_tokens == 5:
            engine.step()
        sequence.num_scheduled = sequence.num_tokens
        plan = engine.scheduler.schedule(engine.clock())
        assert not plan.sequences, f"{sequence} is scheduled, but has nothing pending"
        assert group in engine.scheduler.queues().running, f"{group} should go on running"
        sequence.num_scheduled = sequence.num_computed
        serve(engine, Workload(()))
        check_said(engine, group)
        check_nothing_leaked(engine)

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
            for group in serve(engine, workload).values():
                check_said(engine, group)
                for sequence in group.sequences:
                    if sequence.finish_reason is FinishReason.ERROR:
                        assert "StepFailure" in (sequence.error or ""), sequence.error
            check_nothing_leaked(engine)

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

    def test_a_request_that_is_alone_is_not_preempted(self) -> None:
        engine = self.make_engine(self._registry_with_quanta(), queue_order="always_over")
        workload = Workload(((0, simple_request("A", 9, 8)),))
        check_served(engine, workload, serve(engine, workload))
        assert _preempted(engine) == set(), "it was preempted, and there was no other request"

    def test_no_request_is_preempted_for_one_that_comes_after_it(self) -> None:
        """Where there are blocks for all: for ``max_num_seqs`` or tokens, the order decides."""
        registry = self._registry_with_quanta()
        order = {"name": "always_over", "waiting_first": False}
        workload = Workload(tuple((i, simple_request(f"r{i}", 5 + i, 6)) for i in range(10)))

        def serves(table: dict[str, Any]) -> None:
            engine = self.make_engine(
                registry, scheduler=table, queue_order=order, num_blocks=200, watermark=0.0
            )
            check_served(engine, workload, serve(engine, workload))
            assert _preempted(engine) == set(), "preempted for what came later"

        given = {name: getattr(self.options, name) for name in self.options.model_fields_set}
        self.check(serves, component_options(type(self.options), given), share=0.2)

    def _registry_with_quanta(self) -> Registry:
        return self.registry.extended(ALWAYS_OVER, plugin="conformance")


def _preempted(engine: Engine) -> set[str]:
    watched = engine.scheduler
    assert isinstance(watched, WatchedScheduler)
    return watched.preempted
