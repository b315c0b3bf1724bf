"""The step loop: plan, execute, apply, report. It knows no implementation of anything."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from itertools import chain
from time import perf_counter

from paged_core.cache.kv_cache import KVCache
from paged_core.checked.calls import asking, check_length_cap, check_plan, count_scheduled
from paged_core.checked.fault_names import FaultNames
from paged_core.engine.clock import SystemClock
from paged_core.engine.live_requests import LiveRequests
from paged_core.engine.outcome import EngineMetrics, PlannedStep, StepOutcome, StepRecorder
from paged_core.engine.policies import Policies
from paged_core.errors import (
    AdmissionRefused,
    EngineError,
    ExecutorLost,
    PluginError,
    RequestError,
    stack_text,
)
from paged_core.interfaces.admission import Held, Refused
from paged_core.interfaces.executor import Capacity, Executor
from paged_core.interfaces.observer import Observer
from paged_core.interfaces.scheduler import Queues, Schedule
from paged_core.log import get_logger
from paged_core.request import FinishReason, Request
from paged_core.requests.checks import check_request, run_problem
from paged_core.requests.held import HeldRequests
from paged_core.requests.pins import Pin, Pins, PinState
from paged_core.sequence import SequenceGroup, StopCheck

_log = get_logger()


class Engine:
    """Serves requests step by step. One thread at a time may use it.

    Args:
        policies: makes the scheduler, and what it and ``kv_cache`` need, anew after a failure.
        capacity: what ``executor.start()`` answered.
        faults: names the component that raised.
        clock: seconds; arrivals and deadlines are measured on it. ``None``: this machine's.
        async_scheduling: plan each step while the one before it runs.
        recompute: have each step compute its sequences from their first token, whatever of them is
            in the cache. What is decided stays the same, and so do the tokens.
    """

    def __init__(
        self,
        *,
        policies: Policies,
        kv_cache: KVCache,
        executor: Executor,
        capacity: Capacity,
        faults: FaultNames,
        observers: Sequence[Observer] = (),
        clock: Callable[[], float] | None = None,
        async_scheduling: bool = False,
        recompute: bool = False,
    ) -> None:
        self.kv_cache = kv_cache
        self.scheduler, self._service = policies.make_scheduler(kv_cache, capacity.max_model_len)
        self.executor = executor
        self.capacity = capacity
        self.clock = clock or SystemClock()
        self.num_steps = 0
        self.pins = Pins(kv_cache, capacity.max_model_len)
        """Prefixes that are kept in the cache."""
        self._policies, self._admission = policies, policies.admission
        self._faults = faults
        self._fault: str | None = None
        """Message of the error that raised, while :meth:`_restart` has not made up for it."""
        self._is_lost = False
        """True if the executor is to be started again."""
        self._logged = ""
        """The traceback that was logged last."""
        self._interrupt: BaseException | None = None
        """Ctrl-C, to be raised as soon as the engine is whole."""
        self._recorder = StepRecorder(observers)
        self.seconds, self.observers = self._recorder.seconds, self._recorder.observers
        self.dropped_observers = self._recorder.dropped
        if self._recorder.watches_cache:
            kv_cache.watch(self._recorder.cache)
        self._requests = LiveRequests(kv_cache, self.pins, policies.demand)
        self._held = HeldRequests()
        self._ended: list[SequenceGroup] = []
        """Requests that no outcome has named yet."""
        self._ignored: set[str] = set()
        """Requests that the scheduler no longer holds, of the plan that is being submitted."""
        self._in_flight: deque[PlannedStep] = deque()
        """Steps that were submitted and not collected, the oldest first."""
        self._num_ahead = 1 if async_scheduling else 0
        """Steps that may be in flight when :meth:`step` returns."""
        self._recompute = recompute

    @property
    def has_unfinished(self) -> bool:
        """True if a request is still to be served."""
        return bool(self._requests.groups)

    @property
    def has_work(self) -> bool:
        """True if a step would do or say anything: also if requests ended since the last one."""
        return bool(self._requests.groups or self._ended or self._in_flight)

    @property
    def held_for(self) -> float:
        """Seconds for which all unfinished requests are held back; 0: a step has something to do
        or to say, or there are none."""
        is_idle = self._held.entries and not (self._ended or self._in_flight)
        if is_idle and len(self._held.entries) == len(self._requests.groups):
            return self._held.seconds_left(self.clock())
        return 0.0

    @property
    def groups(self) -> Iterable[SequenceGroup]:
        """The requests that have not finished, in the order of arrival."""
        return self._requests.groups.values()

    def holds(self, group: SequenceGroup) -> bool:
        """Return whether a group is a request of this engine that has not finished."""
        return self._requests.groups.get(group.id) is group

    @property
    def metrics(self) -> EngineMetrics:
        """Counts so far, and of what there is now."""
        return replace(
            self._recorder.metrics,
            num_steps=self.num_steps,
            num_unfinished=len(self._requests.groups),
            num_blocks=self.kv_cache.num_blocks,
            num_free_blocks=self.kv_cache.num_free,
            seconds=dict(self.seconds),
        )

    # ------------------------------------------------------------------ one step

    def step(self) -> StepOutcome:
        """Plan a step, execute it, apply its result; say what finished and what advanced.

        With ``async_scheduling``, what is applied is the result of the step before. A request
        whose own code raises ends with an error. If the executor raises, all requests in the step
        do, and the engine goes on with the others. If anything else raises, all requests do: the
        policies are made anew and the cache is cleared. So it is if the executor is lost, which the
        next step starts again. The error names the component.

        Raises:
            PluginError: a policy cannot be made anew; the next call tries it again.
        """
        outcome = StepOutcome()
        with self._recovering():
            self._step(outcome)
        self._recorder.tell_finished()
        self.num_steps += 1
        outcome.finished, self._ended = self._ended, []
        outcome.progressed |= bool(outcome.finished)
        return outcome

    def _step(self, outcome: StepOutcome) -> None:
        if self._is_lost:
            self._start_again()
        step = self._plan(outcome)
        try:
            is_submitted = self._submit(step, outcome)
        except BaseException:
            self.kv_cache.forget(step.changes.removed)  # the executor was not told of them
            raise
        self._apply_steps(outcome, but=self._num_ahead if is_submitted else 0)
        if not is_submitted:
            self._report(step)
        if not self.has_unfinished:
            self._apply_steps(outcome)

    def _plan(self, outcome: StepOutcome) -> PlannedStep:
        """Let the scheduler plan, and note what becomes of whole requests."""
        started = perf_counter()
        now = self.clock()
        if self.pins.by_id:
            for pin in self.pins.expired(now):
                self.release(pin, "its time was up")
        if self._held.entries:
            for group in self._held.due(now):
                self.scheduler.add(group)
        plan = check_plan(self.scheduler.schedule(now))
        outcome.progressed = bool(
            plan.sequences or plan.preempted or plan.swapped_out or plan.swapped_in or plan.ignored
        )
        self._requests.record_admissions(plan, now)
        self._recorder.plan(plan)
        step = PlannedStep(self.num_steps, now, plan)
        step.seconds["schedule"] = perf_counter() - started
        return step

    def _submit(self, step: PlannedStep, outcome: StepOutcome) -> bool:
        """Hand a step to the executor, if there is anything to do in it."""
        plan, kv_cache = step.plan, self.kv_cache
        if self._recompute:
            for sequence in plan.sequences:
                kv_cache.send_again(sequence)
        failure = self._wait_for_results(plan, outcome)
        if failure is not None:  # what was planned may rely on what is now not computed
            step.changes = kv_cache.take_changes()
            self._fail([step], failure, outcome)
            return True
        if not plan.sequences and not kv_cache.has_transfers:
            return False
        step.changes = kv_cache.take_changes()
        work = step.input(recompute=self._recompute)
        self._recorder.blocks(work)
        step.incomplete = count_scheduled(plan, step.number)
        if self._num_ahead:
            step.ends = [sequence.num_scheduled for sequence in plan.sequences]
        if self._service is not None:
            with asking(self._service):
                for sequence, num_tokens in zip(plan.sequences, plan.num_tokens, strict=True):
                    self._service.served(sequence.group, num_tokens, step.now)
        try:
            step.handle = self.executor.submit(work)
        except BaseException as error:  # noqa: BLE001 - Ctrl-C too: leave nothing half done
            self._fail([step], error, outcome)
            return True
        self._in_flight.append(step)
        if self._num_ahead:
            self._requests.expect(step)
        return True

    def _apply(self, step: PlannedStep, outcome: StepOutcome) -> BaseException | None:
        """Collect a step and apply its result; if it raised, end its requests and say why."""
        try:
            result = self.executor.collect(step.handle)
            step.check(result, self.capacity.vocab_size)
        except BaseException as error:  # noqa: BLE001 - Ctrl-C too
            self._fail([step, *self._discard()], error, outcome)
            return error
        started = perf_counter()
        step.finished = self._requests.apply(step, result, outcome, self.clock())
        for group in step.finished:
            self._remove(group)
        outcome.progressed = True
        step.seconds.update(result.seconds)
        step.seconds["apply"] = perf_counter() - started
        self._report(step)
        return None

    def _report(self, step: PlannedStep) -> None:
        self._recorder.step(step, self._queues, self.kv_cache.num_free, self.clock)

    def _queues(self) -> Queues:
        """Return the scheduler's queues; requests that are held wait behind the others."""
        queues = self.scheduler.queues()
        held = [group for *_, group in self._held.entries]
        return replace(queues, waiting=(*queues.waiting, *held)) if held else queues

    def _apply_steps(self, outcome: StepOutcome, but: int = 0) -> BaseException | None:
        """Apply all steps in flight but the newest ``but``; if one of them raised, say why."""
        while len(self._in_flight) > but:
            error = self._apply(self._in_flight.popleft(), outcome)
            if error is not None:
                return error
        return None

    def _wait_for_results(self, plan: Schedule, outcome: StepOutcome) -> BaseException | None:
        """Apply the steps in flight if the plan ends, or names all tokens of, what they compute;
        end the requests that it ignores."""
        failure: BaseException | None = None
        self._ignored = ignored = {group.id for group, _ in plan.ignored}
        newly_added = self.kv_cache.newly_added
        if (newly_added or ignored) and any(
            sequence.id in newly_added or sequence.group.id in ignored
            for step in self._in_flight
            for sequence in step.plan.sequences
        ):
            failure = self._apply_steps(outcome)
            plan.leave_out_finished()
        self._end_ignored(plan)
        return failure

    def _discard(self) -> list[PlannedStep]:
        """Wait for the steps in flight and drop their results: they build on one that failed."""
        steps, self._in_flight = list(self._in_flight), deque()
        for step in steps:
            with suppress(Exception):
                self.executor.collect(step.handle)
        return steps

    # ------------------------------------------------------------------ failures

    def _fail(
        self, steps: Sequence[PlannedStep], error: BaseException, outcome: StepOutcome
    ) -> None:
        """The executor raised: end the requests in whole steps, and those whose blocks they move.

        Ctrl-C is raised again by :meth:`_recovering`. If the executor is lost, so is what all
        blocks hold, and :meth:`_restart` ends all requests.
        """
        if isinstance(error, ExecutorLost):
            self._is_lost = True
            raise error
        if not isinstance(error, Exception):
            self._interrupt = error
        message = self._faults.describe(error, "executor")
        outcome.progressed = True
        for step in steps:
            groups = [group for group in step.groups() if group.id in self._requests.groups]
            ids = [group.id for group in groups]
            _log.error("step_failed", requests=ids, reason=message, stack=self._stack(error))
            self.kv_cache.uncache(step.changes)
            for group in groups:
                self._end(group, FinishReason.ERROR, message)
            step.finished = groups
            self._report(step)

    @contextmanager
    def _recovering(self) -> Iterator[None]:
        """Leave the engine whole, whatever raises inside; raise Ctrl-C again once it is."""
        if self._fault is not None:
            self._restart(self._fault)
        try:
            yield
        except BaseException as error:  # noqa: BLE001 - Ctrl-C too
            if not isinstance(error, Exception):
                self._interrupt = error
            called = "executor" if self._is_lost else "scheduler"
            self._restart(self._faults.describe(error, called), self._stack(error))
        finally:
            interrupt, self._interrupt = self._interrupt, None
            if interrupt is not None:
                raise interrupt

    def _restart(self, reason: str, stack: str | None = None) -> None:
        """End all requests, clear the cache, and make the policies anew.

        One of them raised while blocks and queues were being changed, so that nothing is known of
        what they hold: what was cached may never have been computed.
        """
        self._fault = reason
        lost = [step.changes.removed for step in self._discard()]
        self.kv_cache.forget(chain(*lost, self._requests.sequence_ids))
        groups = self._requests.abandon(reason, self.clock())
        self.pins.abandon(reason)
        self._ended += groups
        ids = [group.id for group in groups]
        event = "executor_lost" if self._is_lost else "policies_restarted"
        _log.error(event, requests=ids, reason=reason, prefix_cache="cleared", stack=stack)
        made, kv_cache, capacity = self._policies, self.kv_cache, self.capacity
        kv_cache.reset(made.make_allocator(capacity))
        self.scheduler, self._service = made.make_scheduler(kv_cache, capacity.max_model_len)
        self._ignored.clear()
        self._held = HeldRequests()
        self._fault = None
        for group in groups:
            self._recorder.request(group, "finished")
        step = PlannedStep(self.num_steps, self.clock(), Schedule(), finished=groups)
        self._recorder.step(step, lambda: Queues((), ()), self.kv_cache.num_blocks, self.clock)

    def _stack(self, error: BaseException) -> str | None:
        """Return the traceback of an error for the log; ``None``: it was logged last, or there is
        no fault to find."""
        is_fault = isinstance(error, Exception) and not isinstance(error, ExecutorLost)
        stack = stack_text(error) if is_fault else ""
        place = stack.rpartition("\n")[0]  # without the message, which may name a request
        is_known, self._logged = place == self._logged, place
        return None if is_known or not place else stack

    def _start_again(self) -> None:
        """Start the executor that was lost; it must have the capacity that it had."""
        capacity = self.executor.start()
        if capacity != self.capacity:
            raise EngineError(f"start() returned {capacity}, and before {self.capacity}")
        self.kv_cache.take_changes()
        self._is_lost = False
        _log.warning("executor_started_again")

    def _end_ignored(self, plan: Schedule) -> None:
        """End the requests that can never run (again)."""
        for group, reason in plan.ignored:
            if group.id in self._requests.groups:
                generated = any(sequence.output for sequence in group.live)
                ending = FinishReason.LENGTH if generated else FinishReason.IGNORED
                self._end(group, ending, reason)
        self._ignored.clear()

    # ------------------------------------------------------------------ requests

    def add(
        self, request: Request, stop_check: StopCheck | None = None, *, asks: bool = True
    ) -> SequenceGroup:
        """Accept a request.

        Args:
            asks: have the ``admission`` decide; otherwise what can be served is.

        Raises:
            RequestError: it can never be served, or its id is in use; the message says why.
            AdmissionRefused: the admission refuses it.
            PluginError: a component raised over it; the engine is as before.
        """
        with self._blame(request.id):
            max_length = self._max_length(request)
            check_request(
                request,
                stop_check,
                capacity=self.capacity,
                kv_cache=self.kv_cache,
                max_num_seqs=self.scheduler.max_num_seqs,
                max_length=max_length,
            )
            group, refusal = self._offer(request, stop_check, max_length, asks)
        if refusal:
            raise RequestError(f"request {request.id!r} can never run: {refusal}")
        return group

    def offer(self, request: Request) -> str | None:
        """Accept a request unless it is refused by the scheduler or the admission; say why.

        For replays: the engine checks only what would wait for ever, of which schedulers know
        nothing; what they ignore is their decision.
        """
        with self._blame(request.id):
            max_length = self._max_length(request)
            problem = run_problem(request, self.kv_cache, self.scheduler.max_num_seqs, max_length)
            try:
                return problem or self._offer(request, None, max_length)[1]
            except AdmissionRefused as error:
                return str(error)

    def abort(self, request_id: str, reason: str | None = None) -> SequenceGroup | None:
        """Abort a request at once; ``None`` if it is unknown or has finished."""
        group = self._requests.groups.get(request_id)
        if group is not None:
            with self._recovering():
                self._end(group, FinishReason.ABORT, reason)
            self._recorder.tell_finished()
        return group

    def pin(
        self,
        tokens: Sequence[int],
        *,
        ttl: float | None = None,
        cache_salt: str | None = None,
    ) -> Pin:
        """Keep the whole blocks of a prefix in the cache until :meth:`release`.

        A request of the pin's id computes it in the steps to come, as any prompt.

        Args:
            ttl: seconds from now after which a step releases it.

        Raises:
            RequestError: it cannot be cached or computed, or would leave too little room; nothing
                has changed.
        """
        now = self.clock()
        pin = self.pins.open(len(tokens), ttl, now)
        try:
            request = self.pins.request(pin, tokens, cache_salt, now)
            with self._blame(pin.id):
                for group in self.groups:
                    refusal = self.scheduler.refuse(group)
                    if refusal:
                        raise RequestError(f"request {group.id!r} could no longer run: {refusal}")
            pin.group = self.add(request, asks=False)
        except BaseException as error:
            self.pins.end(pin, str(error))
            raise
        return pin

    def release(self, pin: Pin, reason: str = "released") -> None:
        """Let a pinned prefix be evicted; ``RequestError`` if it is another engine's."""
        self.pins.check(pin)
        computing = pin.state is PinState.COMPUTING
        with self._recovering():
            self.pins.end(pin, reason)
        if computing:
            self.abort(pin.id)

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes; ``False``: requests or pins hold some, nothing is done."""
        if self.has_unfinished or self.pins:
            return False
        self.kv_cache.clear_prefixes()
        return True

    def close(self) -> None:
        """Abort unfinished requests and close the executor and the observers.

        Whatever raises, all the rest is closed too; then it is raised again.
        """
        with ExitStack() as closing:
            closing.callback(self._recorder.close)
            closing.callback(self.executor.close)
            closing.callback(self._discard)
            for pin in self.pins:
                self.release(pin)
            for request_id in list(self._requests.groups):
                self.abort(request_id)

    def _max_length(self, request: Request) -> int:
        """Tokens at which a sequence of this request ends at the latest."""
        cap, max_tokens = check_length_cap(self.scheduler), request.sampling.max_tokens
        return cap if max_tokens is None else min(cap, len(request.prompt) + max_tokens)

    def _offer(
        self, request: Request, stop_check: StopCheck | None, max_length: int, asks: bool = True
    ) -> tuple[SequenceGroup, str | None]:
        group = self._requests.make(
            request,
            stop_check,
            max_length=max_length,
            eos_token_ids=self.capacity.eos_token_ids,
        )
        refusal = self.scheduler.refuse(group)
        if refusal is None:
            held = self._ask(group) if asks else None
            try:
                self._requests.add(group)
                if held is None:
                    self.scheduler.add(group)
                else:
                    self._held.add(group, held.until)
                self._recorder.request(group, "added")
            except BaseException:
                self._take_back(group)
                raise
        return group, refusal

    def _ask(self, group: SequenceGroup) -> Held | None:
        """Ask the admission about a request; AdmissionRefused if it is to be refused."""
        num_others, max_num_seqs = len(self._requests.groups), self.scheduler.max_num_seqs
        load = self._requests.demand.load(num_others, max_num_seqs, self.kv_cache)
        decision = self._admission.decide(group.request, load, self.clock())
        if isinstance(decision, Refused):
            self._recorder.request(group, "refused")
            message = f"request {group.id!r} was refused: {decision.reason}"
            raise AdmissionRefused(message, decision.retry_after)
        return decision

    def _take_back(self, group: SequenceGroup) -> None:
        """Forget a request that could not be added whole; the scheduler may hold it already."""
        with self._recovering():
            self._requests.forget(group)
            queues = self.scheduler.queues()
            if group in (*queues.running, *queues.waiting, *queues.swapped):
                self.scheduler.remove(group)

    @contextmanager
    def _blame(self, request_id: str) -> Iterator[None]:
        """Name the component that raises over a request that is being added."""
        if self._fault is not None:
            self._restart(self._fault)
        try:
            yield
        except RequestError:
            raise
        except Exception as error:
            reason = self._faults.describe(error, "scheduler")
            stack = self._stack(error)
            _log.error("request_not_added", request=request_id, reason=reason, stack=stack)
            raise PluginError(f"request {request_id!r} was not added: {reason}") from error

    def _end(self, group: SequenceGroup, reason: FinishReason, error: str | None) -> None:
        self._requests.finish(group, reason, error)
        self._remove(group)

    def _remove(self, group: SequenceGroup) -> None:
        """Forget a request that has ended."""
        was_held = self._held.discard(group)
        if not was_held and group.id not in self._ignored:
            self.scheduler.remove(group)
        self._requests.remove(group, self.clock())
        self._ended.append(group)
        if self._service is not None and not was_held:
            with asking(self._service):
                self._service.left(group)
        self._recorder.request(group, "finished")
