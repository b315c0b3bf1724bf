"""Conformance of schedulers: every plan is checked before the engine sees it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import pairwise, product
from typing import Any, ClassVar

import pytest

from paged_core.engine.engine import Engine
from paged_core.errors import RequestError, SettingsError
from paged_core.interfaces.schedule import Schedule
from paged_core.plugins.component import ComponentSettings
from paged_core.plugins.registry import Registry
from paged_core.request import FinishReason
from paged_core.sequence import SequenceGroup, Status
from paged_core.settings.schema import EngineSettings
from paged_testing.doubles import (
    ALWAYS_OVER,
    TURNING,
    BackgroundExecutor,
    Decision,
    FailingExecutor,
    WatchedScheduler,
)
from paged_testing.engines import (
    BOTH_PREEMPTIONS,
    build_memory_engine,
    memory_settings,
    serve,
    serves_again,
    start_memory_engine,
)
from paged_testing.options import other_options
from paged_testing.policy_subjects import waiting_groups
from paged_testing.repeats import Repeats
from paged_testing.served import (
    check_not_cut_short,
    check_nothing_leaked,
    check_said,
    check_served,
    check_serves_what_fits,
)
from paged_testing.use import instructions
from paged_testing.workloads import SITUATIONS, Situation, Workload, simple_request, unlike

SMALL: Mapping[str, int] = {"max_num_batched_tokens": 4, "max_num_seqs": 5}
"""Limits under which prompts take several steps, requests wait for others, and not all that run
are computed in a step."""
WIDE: Mapping[str, int] = {"max_num_batched_tokens": 1 << 14, "max_num_seqs": 512}
"""Limits under which many requests run."""
UNCHUNKED_BUDGET = 30
"""The same for schedulers that compute a prompt in one step."""
_CROWDS: Mapping[str, tuple[int, float, Mapping[str, Any]]] = {
    "waits": (1, 1 / 8, {}),
    "starts": (0, 16, {}),
    "is swapped": (9, 2, {"block_size": 4, "num_host_blocks": 2048, "preemption": "swap"}),
}
"""Steps, blocks for each of many requests, and settings, by what becomes of the most."""
_LONG = {"prompts of 2048 tokens": (2048, 1), "answers of 400 tokens": (16, 400)}

_STREAM = 80
"""Steps in which small requests keep coming."""
_BRIEF = tuple((step, simple_request(f"brief{step}", 2, 1 + step % 2)) for step in range(2, 12))
DISTURBED = (
    "a forked group that is swapped outgrows the cache",
    "a forked group outgrows the cache without prefixes",
    "of equal prompts the first is aborted",
    "three requests grow and are swapped",
    "the best of several are wanted",
)
"""Situations in which requests are aborted and steps fail at any moment."""


class SchedulerConformance(Repeats):
    """Subclass it for a scheduler; override :meth:`budget` and :meth:`max_num_seqs` if its options
    for them have other names than ``max_num_batched_tokens`` and ``max_num_seqs``::

        class TestMyScheduler(SchedulerConformance):
            component = "my_scheduler"

    Every plan is checked in every test: a sequence is scheduled once and holds the blocks it needs,
    the limits are kept, and what the plan says of whole groups is what became of them.
    """

    slot: ClassVar[str] = "scheduler"

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
        return self.start(
            memory_settings(registry, **{"scheduler": self._table, **self.settings, **values}),
            registry,
        )

    def start(self, settings: EngineSettings, registry: Registry | None = None) -> Engine:
        """Such an engine from settings that are made, which takes most of the time."""
        engine = start_memory_engine(settings, registry or self.registry)
        options = settings.scheduler
        watched = WatchedScheduler.install(
            engine,
            self.budget(options),
            self.max_num_seqs(options),
            settings.queue_order.name == "fcfs",
        )
        watched.step_limits = getattr(options, "step_limits", watched.step_limits)
        return engine

    def uses(self) -> Callable[[int], object]:
        """Requests that compete, also under small limits, and others that always go on; two that
        outgrow the cache, and one that is not added, as where an admission refuses it."""
        values: dict[str, Any] = {"num_blocks": 7, "block_size": 4, "max_model_len": 24}
        engines = list[Engine]()
        for table in self.tables():
            chosen = {**values, **self.settings, "scheduler": table}
            try:
                engine = build_memory_engine(self.registry, **{**BOTH_PREEMPTIONS, **chosen})
            except SettingsError:
                engine = build_memory_engine(self.registry, **chosen)
            engines.append(engine)
        lasting = build_memory_engine(self.registry, **{**chosen, "num_blocks": 24})
        tiny = build_memory_engine(self.registry, **{**chosen, "num_blocks": 2, "block_size": 2})
        serves = serves_again(*engines, lasting=lasting)

        def use(number: int) -> None:
            serves(number)
            asked = unlike([simple_request(name, 1, 20) for name in "ABC"], number)
            engines[-1].scheduler.refuse(*waiting_groups(asked[2:]))
            serve(tiny, Workload(tuple((0, request) for request in asked[:2])))

        return use

    def test_holds_nothing_at_first_and_plans_nothing(self) -> None:
        engine = self.make_engine()
        assert len(engine.scheduler) == 0
        plan = engine.scheduler.schedule(0.0)
        assert not plan.sequences
        assert not plan.admitted

    def test_refuses_nothing_that_fits_alone(self) -> None:
        budget, max_num_seqs = self.budget(self.options), self.max_num_seqs(self.options)
        check_serves_what_fits(self.make_engine(), budget, max_num_seqs)
        for table in self.tables():  # it is served, refused or ignored, and does not wait for ever
            many = Workload(((0, simple_request("A", 2, 3, n=SMALL["max_num_seqs"])),))
            serve(self.make_engine(scheduler=table), many)

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

    def test_as_many_run_at_once_after_others_have_ended(self) -> None:
        """Some of the others were aborted while they ran, some while they waited."""
        situation, num_steps = SITUATIONS["more requests than may run at once"], list[int]()
        requests = situation.workload.requests
        aborts = tuple((at // 3, request.id) for at, (_, request) in enumerate(requests))
        for settings in self.settings_for(situation, block_allocator="uncached"):
            engine = self.start(settings)
            for _ in range(2):
                before = engine.num_steps
                serve(engine, situation.workload)
                num_steps.append(engine.num_steps - before)
                serve(engine, Workload(requests, aborts[::-1]))
            assert num_steps[1] <= num_steps[0], (
                f"the same requests take {num_steps[0]} steps at first, {num_steps[1]} after others"
            )

    def test_bursts_of_long_requests_take_as_many_steps_each(self) -> None:
        engine, num_steps = self.make_engine(num_blocks=32), [0]
        for number in range(6):
            burst = unlike([simple_request(f"r{place}", 50, 4) for place in range(8)], number)
            serve(engine, Workload(tuple((0, request) for request in burst)))
            num_steps.append(engine.num_steps)
        taken = [after - before for before, after in pairwise(num_steps)]
        assert max(taken) <= taken[0] + 2, (
            f"eight requests of 50 tokens take {taken} steps, one burst after the other"
        )

    def test_leaves_out_what_waits_for_a_step_in_flight(self) -> None:
        """Running sequences with nothing pending: their groups are left out, and not disturbed,
        whatever waits."""
        engine = self.make_engine(queue_order="priority")
        groups = [engine.add(simple_request(name, 5, 20, priority=2)) for name in "AB"]
        while not (running := engine.scheduler.queues().running) or running[0].longest < 7:
            engine.step()
        sequences = [sequence for group in running for sequence in group.live]
        for sequence in sequences:
            sequence.num_scheduled = sequence.num_tokens
        groups.append(engine.add(simple_request("C", 5, 8, priority=0)))
        plan = engine.scheduler.schedule(engine.clock())
        scheduled = [each for each in plan.sequences if each in sequences]
        assert not scheduled, f"{scheduled} are scheduled, and have nothing pending"
        for group in running:
            assert group in engine.scheduler.queues().running, f"{group} should go on running"
        for sequence in sequences:
            sequence.num_scheduled = sequence.num_computed
        engine.abort("C")  # of which the engine has seen no plan
        serve(engine, Workload(()))
        for group in groups:
            check_said(engine, group)
        check_nothing_leaked(engine)

    def test_queues_are_in_the_order_in_which_requests_are_admitted(self) -> None:
        """Few of them run at once, and the last ones come first."""
        engine = self.make_engine(num_blocks=8, watermark=0.0, queue_order="priority")
        for number in range(9):
            engine.add(simple_request(f"r{number}", 5, 4, priority=-number))
        while engine.has_unfinished:
            waiting = list(engine.scheduler.queues().waiting)
            engine.step()
            admitted = [group for group in waiting if group.status is not Status.WAITING]
            assert admitted == waiting[: len(admitted)], (
                f"{admitted} were admitted, and queues() had {waiting} waiting: the next one first"
            )

    @pytest.mark.parametrize("of", _LONG)
    def test_calls_take_the_same_instructions_for_short_requests_and_long(self, of: str) -> None:
        """Three decode, if as many may run, and others wait; each takes one block."""
        engines = list[Engine]()
        for length, more in ((16, 1), _LONG[of]):
            values: dict[str, Any] = {"num_blocks": 3, "block_size": 8192, "max_model_len": 8192}
            engine = self.make_engine(watermark=0.0, checks="basic", **values)
            for number in range(6):
                engine.add(simple_request(f"r{number}", length, 4096))
            for _ in range(800):
                engine.step()
                running = engine.scheduler.queues().running
                if running and all(group.longest >= length + more for group in running):
                    break
            engines.append(engine)
        why = f"{{}} takes {{}} instructions where requests are short, {{}} with {of}"
        self.check_cost(engines, why, 2)

    @pytest.mark.parametrize("of", _CROWDS)
    def test_a_step_takes_instructions_in_proportion_to_what(self, of: str) -> None:
        """Three times that are allowed: what waits may have to be sorted, lists move up."""
        num_steps, blocks, more = _CROWDS[of]
        wide = {**self._wide(), **self._table}
        try:
            crowds = [self.crowd(size, wide, num_steps, blocks, **more) for size in (32, 256)]
        except SettingsError as error:
            pytest.skip(str(error))
        if of == "is swapped" and len(crowds[0].scheduler.queues().swapped) < 4:
            pytest.skip("it preempts fewer than 4 of 32 requests that grow")
        self.check_cost(crowds)

    def test_a_step_takes_instructions_in_proportion_to_what_runs(self) -> None:
        """With options with which many run, as far as its settings class permits any.

        As many are there as may be: those that start one after the other are waited for.
        """
        few, crowds = 0, list[Engine]()
        kind, own = type(self.options), dict(self._table)
        for table in (own, {**self._wide(), **own}, *other_options(kind, own)):
            with suppress(SettingsError, RequestError):
                crowds = [self.crowd(size, table, most_steps=300) for size in (32, 256)]
                num_running = [len(each.scheduler.queues().running) for each in crowds]
                if num_running[1] >= 4 * num_running[0] > 16:
                    self.check_cost(crowds)
                    return
                few = max(few, num_running[1])
        pytest.skip(f"of 256 requests {few} run at once, with whichever options")

    def _wide(self) -> dict[str, Any]:
        return {name: n for name, n in WIDE.items() if name in type(self.options).model_fields}

    def crowd(
        self, size: int, table: Mapping[str, Any], most_steps: int, blocks: float = 16, **more: Any
    ) -> Engine:
        """An engine with so many requests, half of them of one tenant; nothing of the others is
        alike. Nothing asks for queues in its steps."""
        values: dict[str, Any] = {"block_size": 32, "max_model_len": 512, "checks": "basic"}
        values |= {"num_blocks": int(blocks * size), "scheduler": table, **self.settings, **more}
        engine = build_memory_engine(self.registry, **values)
        for number in range(size):
            request = simple_request(f"r{number}", 5, 500)
            engine.add(unlike([request], number)[0] if number % 2 else request)
        for _ in range(most_steps):
            engine.step()
            if not more and not engine.scheduler.queues().waiting:
                break
        return engine

    def check_cost(
        self,
        crowds: Sequence[Engine],
        why: str = "{} takes {} instructions while 32 requests are there, {} at 256",
        most: int = 24,
    ) -> None:
        """Check the instructions of calls in two engines, by default of 32 and 256 requests."""
        removed = "r16" if most > 2 else "r4"
        calls: Mapping[str, Callable[[Engine], object]] = {
            "a step": Engine.step,
            "queues()": lambda engine: engine.scheduler.queues(),
            "add()": lambda engine: engine.add(simple_request("another", 5, 500)),
            "remove()": lambda engine: engine.abort(removed),
            "remove() of one that runs": lambda engine: [
                engine.abort(group.id) for group in engine.scheduler.queues().running[:1]
            ],
            "a step after those that ran have left": Engine.step,
        }
        for name, call in calls.items():
            for engine in crowds if "left" in name else ():
                for group in engine.scheduler.queues().running:
                    engine.abort(group.id)
            few, many = (
                instructions(partial(call, each), self.package, most=1_000_000) for each in crowds
            )
            factor = 40 if "left" in name and most > 2 else most  # lists of all may move up
            assert many <= factor * few + 100, why.format(name, few, many)

    # ------------------------------------------------------------------ written situations

    def tables(self) -> Iterator[dict[str, Any]]:
        """The component as it is named, and with small limits, as far as its table sets none."""
        yield dict(self._table)
        fields, small = type(self.options).model_fields, dict(self._table)
        for name, limit in SMALL.items():
            if name in fields:
                small.setdefault(name, limit)
        if small.get("max_num_batched_tokens") == 4 and not self._cuts_prompts(small):
            small["max_num_batched_tokens"] = UNCHUNKED_BUDGET
        if small != self._table:
            yield small

    def _cuts_prompts(self, table: Mapping[str, Any]) -> bool:
        """Return whether a prompt that exceeds the budget is computed in several steps."""
        engine = self.make_engine(scheduler=table)
        try:
            group = engine.add(simple_request("A", 9, 9))
        except RequestError:
            return False
        for _ in range(3):
            engine.step()
        assert group.admitted_at is not None or group.finished, (
            "a prompt of 9 tokens waits for ever where the budget of a step is 4: compute it in "
            "chunks, refuse it in refuse(), or ignore it"
        )
        return group.admitted_at is not None

    def settings_for(self, situation: Situation, **values: Any) -> Iterator[EngineSettings]:
        """Settings for a situation, as far as the components combine."""
        return (settings for settings, _ in self._combined(situation, values))

    def engines(self, situation: Situation, **values: Any) -> Iterator[Engine]:
        """Fresh engines for a situation, as far as the components combine."""
        return (engine for _, engine in self._combined(situation, values))

    def _combined(
        self, situation: Situation, values: Mapping[str, Any]
    ) -> Iterator[tuple[EngineSettings, Engine]]:
        for table in self.tables():
            with suppress(SettingsError):
                combined = situation.values({**values, "scheduler": table})
                settings = memory_settings(self.registry, **combined)
                yield settings, self.start(settings)

    def check_written(self) -> None:
        cases = SchedulerConformance  # a subclass may leave out some of its tests
        for name in (*DISTURBED[:3], "better requests arrive while others run"):
            situation = SITUATIONS[name]
            cases.test_serves_when(self, situation)
            cases.test_plans_ahead_when(self, situation)

    @pytest.mark.parametrize("situation", SITUATIONS.values(), ids=SITUATIONS)
    def test_serves_when(self, situation: Situation) -> None:
        longest = situation.num_tokens
        for engine in self.engines(situation):
            groups = serve(engine, situation.workload)
            check_served(engine, situation.workload, groups)
            assert isinstance(engine.scheduler, WatchedScheduler)
            if not situation.outgrown and engine.scheduler.may_run(longest):
                check_not_cut_short(groups.values())

    @pytest.mark.parametrize("situation", SITUATIONS.values(), ids=SITUATIONS)
    def test_plans_ahead_when(self, situation: Situation) -> None:
        """A running sequence may have nothing pending: a step in flight draws its next token.

        In many steps it draws the last one of a request.
        """
        workload = Workload((*situation.workload.requests, *_BRIEF), situation.workload.aborts)
        for engine in self.engines(situation, async_scheduling=True):
            BackgroundExecutor.install(engine)
            check_served(engine, workload, serve(engine, workload))

    @pytest.mark.parametrize("name", DISTURBED)
    def test_aborts_at_any_moment_when(self, name: str) -> None:
        """Each request, while it waits, is computed, decodes, is preempted or swapped out."""
        situation = SITUATIONS[name]
        requests = situation.workload.requests
        for settings in self.settings_for(situation):
            for step, (_, request) in product(range(16), requests):
                engine = self.start(settings)
                workload = Workload(requests, ((step, request.id),))
                check_served(engine, workload, serve(engine, workload))

    @pytest.mark.parametrize("name", DISTURBED)
    def test_steps_fail_at_any_moment_when(self, name: str) -> None:
        situation = SITUATIONS[name]
        for settings in self.settings_for(situation):
            for step, moment in product(range(12), ("before", "after")):
                engine = self.start(settings)
                FailingExecutor.install(engine, **{moment: {step}})
                groups = serve(engine, situation.workload)
                check_after_failures(engine, groups.values())

    # ------------------------------------------------------------------ orders that change

    def decided(
        self, workload: Workload, table: Mapping[str, Any], **order: Any
    ) -> Sequence[Decision]:
        """Return what is decided in few blocks, under an order whose keys change at a time.

        Nothing asks for the queues meanwhile, which would put them in order.
        """
        registry = self.registry.extended(TURNING, plugin="conformance")
        values = {"scheduler": table, "queue_order": {"name": "turning", **order}}
        small: dict[str, Any] = {"num_blocks": 12, "block_size": 2, "watermark": 0.0}
        engine = build_memory_engine(registry, **{**self.settings, **values, **small})
        scheduler, decisions = engine.scheduler, list[Decision]()
        schedule = scheduler.schedule

        def noted(now: float) -> Schedule:
            plan = schedule(now)
            decisions.append(Decision.of(plan))
            return plan

        scheduler.schedule = noted  # type: ignore[method-assign]
        check_served(engine, workload, serve(engine, workload))
        return decisions

    def test_what_the_order_was_while_nothing_could_start_does_not_matter(self) -> None:
        """The first request takes the cache until the keys of those that wait have changed."""
        later = [
            (1 + place // 2, replace(simple_request(f"r{place}", 13, 3), tenant="ab"[place % 2]))
            for place in range(4)
        ]
        workload = Workload(((0, simple_request("A", 12, 9)), *later))
        for table in self.tables():
            steady, turned = (self.decided(workload, table, at=at) for at in (0.0, 6.0))
            if steady[:6] == turned[:6]:
                check_same(steady, turned)

    def test_what_was_preempted_is_the_first_of_its_equals(self) -> None:
        """Where the scheduler follows the order, under one in which all are equal."""
        whole = Workload(tuple((0, simple_request(name, 13, 3)) for name in "ABC"))
        workload = Workload(
            (
                (0, simple_request("A", 6, 14)),
                (0, simple_request("B", 6, 14)),
                (2, simple_request("C", 13, 3)),
            )
        )
        for table in self.tables():
            if self.decided(whole, table, at=0.0) == self.decided(whole, table, at=1e6):
                continue  # it has an order of its own
            decisions = self.decided(workload, table, equal=True)
            admitted = [name for step in decisions for name, _ in step.admitted]
            if admitted.count("B") > 1:
                assert admitted.index("C") > 2, f"{admitted}: C came after B, which was preempted"

    # ------------------------------------------------------------------ what is swapped out

    def test_what_is_swapped_out_goes_on_while_others_keep_coming(self) -> None:
        """A large request is swapped out, and two small ones come in each step from then on."""
        values: dict[str, Any] = {"num_blocks": 16, "block_size": 2, "num_host_blocks": 40}
        engine = self.make_engine(preemption="swap", watermark=0.0, max_model_len=32, **values)
        large = [engine.add(simple_request(name, n, 10)) for name, n in (("A", 6), ("B", 20))]
        for step in range(_STREAM):
            swapped = list(engine.scheduler.queues().swapped)
            for place, size in enumerate((2, 2 + step % 5) if step > 4 else ()):
                with suppress(RequestError):
                    num_tokens = 3 + (5 * step + 4 * place) % 11
                    engine.add(simple_request(f"{step}.{place}", size, num_tokens))
            engine.step()
            back = {group for group in swapped if group.status is not Status.SWAPPED}
            by_arrival = sorted(swapped, key=lambda group: group.number)
            assert back in ({*swapped[: len(back)]}, {*by_arrival[: len(back)]}), (
                f"step {step}: {back} go on, though others of {swapped} are to be the next"
            )
        late = [group for group in large if group.live]
        assert not late, f"{late} have not ended in {_STREAM} steps, and small ones go before them"

    # ------------------------------------------------------------------ orders that have quanta

    def test_a_request_that_is_alone_is_not_preempted(self) -> None:
        engine = self.make_engine(self._registry_with_quanta(), queue_order="always_over")
        workload = Workload(((0, simple_request("A", 9, 8)),))
        check_served(engine, workload, serve(engine, workload))
        assert preempted_in(engine) == set(), "it was preempted, and there was no other request"

    def test_no_request_is_preempted_for_a_later_one(self) -> None:
        for table in self.tables():
            self.check_not_preempted_for_later(table)

    def check_not_preempted_for_later(self, table: Mapping[str, Any]) -> None:
        """Where there are blocks for all: for ``max_num_seqs`` or tokens, the order decides."""
        registry = self._registry_with_quanta()
        order = {"name": "always_over", "waiting_first": False}
        workload = Workload(tuple((i, simple_request(f"r{i}", 5 + i, 6)) for i in range(10)))
        engine = self.make_engine(
            registry, scheduler=table, queue_order=order, num_blocks=200, watermark=0.0
        )
        check_served(engine, workload, serve(engine, workload))
        preempted = sorted(preempted_in(engine))
        assert not preempted, f"{preempted} were preempted for what came later"

    @pytest.mark.parametrize("waiting_first", [True, False])
    def test_requests_end_though_every_quantum_is_always_over(self, waiting_first: bool) -> None:
        """A scheduler that ends quanta makes sure that a token is generated in each."""
        registry = self._registry_with_quanta()
        order = {"name": "always_over", "waiting_first": waiting_first}
        for situation in SITUATIONS.values():
            for table in self.tables():
                values = situation.values({"scheduler": table, "queue_order": order})
                with suppress(SettingsError):
                    engine = self.make_engine(registry, **values)
                    groups = serve(engine, situation.workload, max_steps=2000)
                    check_served(engine, situation.workload, groups)

    @pytest.mark.parametrize("waits", [False, True])
    def test_what_is_swapped_out_has_its_turn(self, waits: bool) -> None:
        """Where quanta end for what waits: each of three, of which one fits, comes first for two
        seconds, as the order is at the time; before another that waits, or not."""
        asked = [simple_request(name, 17, 15) for name in ("ABCD" if waits else "ABC")]
        numbers, order = list[int](), {"name": "always_over", "turns": 3}
        values: dict[str, Any] = {"num_blocks": 5, "block_size": 8, "num_host_blocks": 40}
        for preemption in ("recompute", "swap"):
            engine = build_memory_engine(
                self._registry_with_quanta(),
                **{**self.settings, **values, "scheduler": self._table, "queue_order": order},
                preemption=preemption,
                watermark=0.0,
            )
            serve(engine, Workload(tuple((0, request) for request in asked)))
            numbers.append(engine.metrics.num_preemptions)
        assert numbers[0] < 8 or numbers[1] > 16, (
            f"requests of 15 tokens, which take turns of two seconds, are swapped out {numbers[1]} "
            f"times, and preempted {numbers[0]} times where they are computed again: end quanta "
            "also for what is swapped out, by its place in the order of this step"
        )

    def _registry_with_quanta(self) -> Registry:
        return self.registry.extended(ALWAYS_OVER, plugin="conformance")


def check_after_failures(engine: Engine, groups: Iterable[SequenceGroup]) -> None:
    """Check the requests of an engine in which steps failed on purpose."""
    for group in groups:
        check_said(engine, group)
        for sequence in group.sequences:
            if sequence.finish_reason is FinishReason.ERROR:
                assert "StepFailure" in (sequence.error or ""), sequence.error
    check_nothing_leaked(engine)


def check_same(first: Sequence[object], again: Sequence[object]) -> None:
    """Check that the decisions of two runs are the same."""
    for step, (one, other) in enumerate(zip(first, again, strict=True)):
        assert one == other, (
            f"in step {step} it decides {other}, {one} the first time: "
            "what it decides follows from the calls, `now` and the order of the groups at `now`"
        )


def preempted_in(engine: Engine) -> set[str]:
    """Ids of the requests that were preempted in any step."""
    watched = engine.scheduler
    assert isinstance(watched, WatchedScheduler)
    return watched.preempted
