"""The step loop: plan, execute, apply, report. It knows no implementation of anything."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from time import monotonic, perf_counter

from paged_core.errors import RequestError
from paged_core.interfaces.executor import Capacity, Executor
from paged_core.interfaces.observer import Observer
from paged_core.interfaces.queue_order import SupportsService
from paged_core.interfaces.scheduler import Schedule, Scheduler
from paged_core.kv_cache import KVCache
from paged_core.log import get_logger
from paged_core.metrics import EngineMetrics
from paged_core.planned_step import PlannedStep
from paged_core.request import FinishReason, Request
from paged_core.requests.checks import check_request, run_problem
from paged_core.requests.live_requests import LiveRequests
from paged_core.requests.pins import Pin, Pins, PinState
from paged_core.sampling_params import SamplingParams
from paged_core.sequence import SequenceGroup, StopCheck
from paged_core.step_outcome import StepOutcome
from paged_core.step_recorder import StepRecorder

_log = get_logger()


class Engine:
    """Serves requests step by step. One thread at a time may use it.

    Args:
        capacity: what ``executor.start()`` answered.
        service: a queue order that counts what each group is given.
        clock: seconds; arrivals and deadlines are measured on it.
        async_scheduling: plan each step while the one before it runs.
    """

    def __init__(
        self,
        *,
        scheduler: Scheduler,
        kv_cache: KVCache,
        executor: Executor,
        capacity: Capacity,
        service: SupportsService | None = None,
        observers: Sequence[Observer] = (),
        clock: Callable[[], float] = monotonic,
        async_scheduling: bool = False,
    ) -> None:
        self.scheduler = scheduler
        self.kv_cache = kv_cache
        self.executor = executor
        self.capacity = capacity
        self.clock = clock
        self.num_steps = 0
        self.pins = Pins(kv_cache, capacity.max_model_len)
        """Prefixes that are kept in the cache."""
        self._service = service
        self._recorder = StepRecorder(observers)
        self.seconds, self.observers = self._recorder.seconds, self._recorder.observers
        self._requests = LiveRequests(kv_cache, self.pins)
        self._aborted: list[SequenceGroup] = []
        """Requests that no outcome has named yet."""
        self._ignored: set[str] = set()
        """Requests that the scheduler no longer holds, of the plan that is being submitted."""
        self._under_way: deque[PlannedStep] = deque()
        """Steps that were submitted and not collected, the oldest first."""
        self._num_ahead = 1 if async_scheduling else 0
        """Steps that may be under way when :meth:`step` returns."""

    @property
    def has_unfinished(self) -> bool:
        """Whether a request is still to be served."""
        return bool(self._requests.groups)

    @property
    def groups(self) -> Iterable[SequenceGroup]:
        """The requests that have not finished, in the order of arrival."""
        return self._requests.groups.values()

    @property
    def metrics(self) -> EngineMetrics:
        """What it has counted so far, and what there is now."""
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
        whose own code raises ends with an error. If a whole step raises, all requests in it do,
        and the engine goes on with the others.
        """
        outcome = StepOutcome()
        step = self._plan(outcome)
        is_submitted = self._submit(step, outcome)
        while len(self._under_way) > (self._num_ahead if is_submitted else 0):
            self._apply(self._under_way.popleft(), outcome)
        if not is_submitted:
            self._report(step)
        if not self.has_unfinished:
            self._settle(outcome)
        self.num_steps += 1
        return outcome

    def _plan(self, outcome: StepOutcome) -> PlannedStep:
        """Let the scheduler plan, and note what becomes of whole requests."""
        started = perf_counter()
        now = self.clock()
        if self.pins:
            for pin in self.pins.expired(now):
                self.release(pin, "its time was up")
        plan = self.scheduler.schedule(now)
        outcome.progressed = bool(
            plan.sequences or plan.preempted or plan.swapped_out or plan.swapped_in or plan.ignored
        )
        self._note(plan, now)
        outcome.finished += self._aborted
        self._aborted.clear()
        step = PlannedStep(self.num_steps, now, plan)
        step.seconds["schedule"] = perf_counter() - started
        return step

    def _submit(self, step: PlannedStep, outcome: StepOutcome) -> bool:
        """Hand a step to the executor, if there is anything to do in it."""
        plan, kv_cache = step.plan, self.kv_cache
        failure = self._wait_for_results(plan, outcome)
        if failure is not None:  # what was planned may rely on what is now not computed
            step.changes = kv_cache.take_changes()
            self._fail([step], failure, outcome)
            if not isinstance(failure, Exception):
                raise failure
            return True
        if not plan.sequences and not kv_cache.has_transfers:
            return False
        step.changes = kv_cache.take_changes()
        work = step.input()
        self._recorder.blocks(work)
        for sequence, num_tokens in zip(plan.sequences, plan.num_tokens, strict=True):
            sequence.num_scheduled += num_tokens
        if self._num_ahead:
            step.ends = [sequence.num_scheduled for sequence in plan.sequences]
        if kv_cache.notes_steps:
            for sequence in plan.sequences:
                sequence.last_step = step.number
        if self._service is not None:
            for sequence, num_tokens in zip(plan.sequences, plan.num_tokens, strict=True):
                self._service.served(sequence.group, num_tokens, step.now)
        try:
            step.handle = self.executor.submit(work)
        except BaseException as error:  # Ctrl-C too: leave nothing half done
            self._fail([step], error, outcome)
            if not isinstance(error, Exception):
                raise
            return True
        self._under_way.append(step)
        if self._num_ahead:
            self._requests.expect(step)
        return True

    def _apply(self, step: PlannedStep, outcome: StepOutcome) -> Exception | None:
        """Collect a step and apply its result; if it raised, end its requests and say why."""
        try:
            result = self.executor.collect(step.handle)
        except BaseException as error:
            self._fail([step, *self._discard()], error, outcome)
            if not isinstance(error, Exception):
                raise
            return error
        started = perf_counter()
        step.finished = self._requests.apply(step, result, outcome, self.clock())
        for group in step.finished:
            self._remove(group)
        outcome.finished += step.finished
        outcome.progressed = True
        step.seconds.update(result.seconds)
        step.seconds["apply"] = perf_counter() - started
        self._report(step)
        return None

    def _report(self, step: PlannedStep) -> None:
        self._recorder.step(step, self.scheduler.queues, self.kv_cache.num_free)

    def _settle(self, outcome: StepOutcome) -> Exception | None:
        """Apply all steps under way; if one of them raised, say why."""
        while self._under_way:
            error = self._apply(self._under_way.popleft(), outcome)
            if error is not None:
                return error
        return None

    def _wait_for_results(self, plan: Schedule, outcome: StepOutcome) -> BaseException | None:
        """Apply the steps under way if the plan needs that; end the requests that it ignores."""
        failure: BaseException | None = None
        self._ignored = {group.id for group, _ in plan.ignored}
        if self._needs_results():
            try:
                failure = self._settle(outcome)
            except BaseException as error:  # noqa: BLE001 - Ctrl-C: raised when the plan has ended
                failure = error
            plan.leave_out_finished()
        self._end_ignored(plan, outcome)
        return failure

    def _needs_results(self) -> bool:
        """Whether the plan ends, or names all tokens of, what a step under way computes."""
        introduced, ignored = self.kv_cache.introduced, self._ignored
        return bool(self._under_way and (introduced or ignored)) and any(
            sequence.id in introduced or sequence.group.id in ignored
            for step in self._under_way
            for sequence in step.plan.sequences
        )

    def _discard(self) -> list[PlannedStep]:
        """Wait for the steps under way and drop their results: they build on one that failed."""
        steps = list(self._under_way)
        self._under_way.clear()
        for step in steps:
            with suppress(Exception):
                self.executor.collect(step.handle)
        return steps

    def _fail(
        self, steps: Sequence[PlannedStep], error: BaseException, outcome: StepOutcome
    ) -> None:
        """Whole steps raised: end the requests in them, and those whose blocks they move."""
        message = f"{type(error).__name__}: {error}"
        for step in steps:
            groups = [group for group in step.groups() if group.id in self._requests.groups]
            _log.error("step_failed", requests=[group.id for group in groups], reason=message)
            self.kv_cache.retract(step.changes)
            for group in groups:
                self._requests.finish(group, FinishReason.ERROR, message)
                self._remove(group)
            step.finished = groups
            outcome.finished += groups
            outcome.progressed = True
            self._report(step)

    def _note(self, plan: Schedule, now: float) -> None:
        """Note which requests were admitted and preempted."""
        for group, cached in plan.admitted:
            if group.num_cached is None:
                group.num_cached, group.admitted_at = cached, now
        for group in (*plan.preempted, *plan.swapped_out):
            group.waiting_since = now  # for schedulers that set the status alone
        for group in plan.preempted:
            group.num_preemptions += 1
            known = group.prompt_logprobs
            if known is not None and len(known) < len(group.request.prompt):
                group.prompt_logprobs = None  # its prompt starts again
        self._recorder.plan(plan)

    def _end_ignored(self, plan: Schedule, outcome: StepOutcome) -> None:
        """End the requests that can never run (again)."""
        for group, reason in plan.ignored:
            if group.id in self._requests.groups:
                generated = any(sequence.output for sequence in group.live)
                ending = FinishReason.LENGTH if generated else FinishReason.IGNORED
                self._requests.finish(group, ending, reason)
                self._remove(group)
                outcome.finished.append(group)
        self._ignored.clear()

    # ------------------------------------------------------------------ requests

    def add(self, request: Request, stop_check: StopCheck | None = None) -> SequenceGroup:
        """Accept a request.

        Raises:
            RequestError: it can never be served, or its id is in use; the message says why.
        """
        if request.id in self._requests.groups:
            raise RequestError(
                f"request {request.id!r} is being served already; give each request its own id"
            )
        if stop_check is not None and request.sampling.beam_width is not None:
            raise RequestError(
                f"request {request.id!r} has a stop check, but beams end at tokens only; use "
                "stop_token_ids"
            )
        check_request(
            request,
            capacity=self.capacity,
            kv_cache=self.kv_cache,
            max_num_seqs=self.scheduler.max_num_seqs,
            max_length=self._max_length(request),
        )
        group, refusal = self._offer(request, stop_check)
        if refusal:
            raise RequestError(f"request {request.id!r} can never run: {refusal}")
        return group

    def offer(self, request: Request) -> str | None:
        """Accept a request unless the scheduler refuses it, and return its reason if it does.

        For replays: the engine checks only what would wait for ever, of which schedulers know
        nothing; what they ignore is their decision.
        """
        max_length = self._max_length(request)
        problem = run_problem(request, self.kv_cache, self.scheduler.max_num_seqs, max_length)
        return problem or self._offer(request, None)[1]

    def abort(self, request_id: str) -> SequenceGroup | None:
        """Abort a request at once; ``None`` if it is unknown or has finished."""
        group = self._requests.groups.get(request_id)
        if group is not None:
            self._requests.finish(group, FinishReason.ABORT)
            self._remove(group)
            self._aborted.append(group)
        return group

    def pin(
        self,
        tokens: Sequence[int],
        *,
        ttl: float | None = None,
        cache_salt: str | None = None,
        adapter: str | None = None,
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
            request = Request(
                id=pin.id,
                prompt=tuple(tokens[: pin.num_blocks * self.kv_cache.block_size]),
                sampling=SamplingParams(max_tokens=1),
                arrival=now,
                cache_salt=cache_salt,
                adapter=adapter,
            )
            for group in self.groups:
                refusal = self.scheduler.refuse(group)
                if refusal:
                    raise RequestError(f"request {group.id!r} could no longer run: {refusal}")
            pin.group = self.add(request)
        except RequestError as error:
            self.pins.end(pin, str(error))
            raise
        return pin

    def release(self, pin: Pin, reason: str = "released") -> None:
        """Let a pinned prefix be evicted."""
        computing = pin.state is PinState.COMPUTING
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
        """Abort unfinished requests and close the executor and the observers."""
        for pin in self.pins:
            self.release(pin)
        for request_id in list(self._requests.groups):
            self.abort(request_id)
        self._discard()
        self.executor.close()
        self._recorder.close()

    def _max_length(self, request: Request) -> int:
        """Tokens at which a sequence of this request ends at the latest."""
        cap, max_tokens = self.scheduler.length_cap, request.sampling.max_tokens
        return cap if max_tokens is None else min(cap, len(request.prompt) + max_tokens)

    def _offer(
        self, request: Request, stop_check: StopCheck | None
    ) -> tuple[SequenceGroup, str | None]:
        group = self._requests.make(
            request,
            stop_check,
            max_length=self._max_length(request),
            eos_token_ids=self.capacity.eos_token_ids,
        )
        refusal = self.scheduler.refuse(group)
        if refusal is None:
            self._requests.add(group)
            self.scheduler.add(group)
            self._recorder.request(group, "added")
        return group, refusal

    def _remove(self, group: SequenceGroup) -> None:
        """Forget a request that has ended."""
        if group.id not in self._ignored:
            self.scheduler.remove(group)
        self._requests.remove(group, self.clock())
        if self._service is not None:
            self._service.left(group)
        self._recorder.request(group, "finished")
