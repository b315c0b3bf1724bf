"""The step loop: add, plan, run, apply. It knows no implementation of anything."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count
from time import monotonic, perf_counter

from paged_core.cache_changes import CacheChanges
from paged_core.errors import RequestError
from paged_core.ids import SeqId
from paged_core.interfaces.executor import Capacity, Executor
from paged_core.interfaces.observer import Observer
from paged_core.interfaces.queue_order import SupportsService
from paged_core.interfaces.scheduler import Schedule, Scheduler
from paged_core.kv_cache import KVCache
from paged_core.log import get_logger
from paged_core.observer_set import ObserverSet
from paged_core.planned_step import step_input, step_record
from paged_core.request import FinishReason, Request
from paged_core.requests.beams import Beams
from paged_core.requests.best_of import keep_best
from paged_core.requests.checks import check_request, run_problem
from paged_core.requests.pins import Pin, Pins, PinState
from paged_core.sampling_params import SamplingParams
from paged_core.sequence import SequenceGroup, SequenceState, Status, StopCheck
from paged_core.step import StepResult

_log = get_logger()


class Engine:
    """Serves requests step by step. One thread at a time may use it.

    Args:
        capacity: what ``executor.start()`` answered.
        service: a queue order that counts what each group is given.
        clock: seconds; arrivals and deadlines are measured on it.
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
    ) -> None:
        self.scheduler = scheduler
        self.kv_cache = kv_cache
        self.executor = executor
        self.capacity = capacity
        self.clock = clock
        self.seconds: dict[str, float] = {}
        """Time spent so far, by phase."""
        self.num_steps = 0
        self.made_progress = False
        """Whether the last step decided anything at all."""
        self.pins = Pins(kv_cache, capacity.max_model_len)
        """Prefixes that are kept in the cache."""
        self._service = service
        self._observers = ObserverSet(observers)
        self._groups: dict[str, SequenceGroup] = {}
        self._sequences: dict[SeqId, SequenceState] = {}
        self._numbers = count()
        self._ids = count()
        self._beams = Beams(kv_cache, self._sequences, self._ids)

    @property
    def has_unfinished(self) -> bool:
        """Whether a request is still to be served."""
        return bool(self._groups)

    @property
    def groups(self) -> Iterable[SequenceGroup]:
        """The requests that are not finished, in the order of their coming."""
        return self._groups.values()

    # ------------------------------------------------------------------ requests

    def add(self, request: Request, stop_check: StopCheck | None = None) -> SequenceGroup:
        """Accept a request.

        Raises:
            RequestError: it can never be served, or its id is in use; the message says why.
        """
        self._check(request, stop_check)
        group, refusal = self._offer(request, stop_check)
        if refusal:
            raise RequestError(f"request {request.id!r} can never run: {refusal}")
        return group

    def offer(self, request: Request) -> str | None:
        """Accept a request unless the scheduler refuses it, and return its reason if it does.

        The engine's own checks are left out: a request that can never fit is then the scheduler's
        problem, as it is where recorded decisions are replayed. Only runs of blocks, of which
        schedulers know nothing, are looked at.
        """
        problem = run_problem(request, self.kv_cache, self._max_length(request))
        return problem or self._offer(request, None)[1]

    def abort(self, request_id: str) -> SequenceGroup | None:
        """Give a request up, at once; ``None`` if it is unknown or finished already."""
        group = self._groups.get(request_id)
        if group is not None:
            self._finish_group(group, FinishReason.ABORT)
            self._remove(group)
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
        request = Request(
            id=pin.id,
            prompt=tuple(tokens[: pin.num_blocks * self.kv_cache.block_size]),
            sampling=SamplingParams(max_tokens=1),
            arrival=now,
            cache_salt=cache_salt,
            adapter=adapter,
        )
        try:
            for group in self.groups:
                refusal = self.scheduler.refuse(group)
                if refusal:
                    raise RequestError(f"request {group.id!r} could no longer run: {refusal}")
            pin.group = self.add(request)
        except RequestError as error:
            self.pins.end(pin, str(error))
            raise
        return pin

    def release(self, pin: Pin) -> None:
        """Let a pinned prefix go; its blocks stay cached until others need them."""
        self._end(pin, "released")

    def _end(self, pin: Pin, reason: str) -> None:
        computing = pin.state is PinState.COMPUTING
        self.pins.end(pin, reason)
        if computing:
            self.abort(pin.id)

    def close(self) -> None:
        """Give up what is unfinished and close the executor and the observers."""
        for pin in self.pins:
            self.release(pin)
        for request_id in list(self._groups):
            self.abort(request_id)
        self.executor.close()
        self._observers.close()

    def _check(self, request: Request, stop_check: StopCheck | None) -> None:
        if request.id in self._groups:
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

    def _make_group(self, request: Request, stop_check: StopCheck | None) -> SequenceGroup:
        group = SequenceGroup(request, next(self._numbers), SeqId(next(self._ids)))
        sampling = request.sampling
        group.max_length = self._max_length(request)
        eos = frozenset() if sampling.ignore_eos else self.capacity.eos_token_ids
        group.stop_token_ids = eos.union(sampling.stop_token_ids)
        group.stop_check = stop_check
        return group

    def _max_length(self, request: Request) -> int:
        """Tokens at which a sequence of this request ends at the latest."""
        cap, max_tokens = self.scheduler.length_cap, request.sampling.max_tokens
        return cap if max_tokens is None else min(cap, len(request.prompt) + max_tokens)

    def _offer(
        self, request: Request, stop_check: StopCheck | None
    ) -> tuple[SequenceGroup, str | None]:
        group = self._make_group(request, stop_check)
        refusal = self.scheduler.refuse(group)
        if refusal is None:
            self._enter(group)
        return group, refusal

    def _enter(self, group: SequenceGroup) -> None:
        self._groups[group.id] = group
        self._sequences[group.live[0].id] = group.live[0]
        self._beams.start(group)
        self.scheduler.add(group)
        self._observers.on_request(group, "added")

    # ------------------------------------------------------------------ one step

    def step(self) -> list[SequenceGroup]:
        """Plan, run and apply one step; return the requests that ended with it.

        A request whose own code raises ends with an error. If the whole step raises, all requests
        in it do, and the engine goes on with the others.
        """
        started = perf_counter()
        now = self.clock()
        if self.pins:
            for pin in self.pins.expired(now):
                self._end(pin, "its time was up")
        plan = self.scheduler.schedule(now)
        self.made_progress = bool(
            plan.sequences or plan.preempted or plan.swapped_out or plan.swapped_in or plan.ignored
        )
        self._note(plan, now)
        seconds = {"schedule": perf_counter() - started}
        finished: list[SequenceGroup] = []
        if plan.sequences or self.kv_cache.has_transfers:
            finished = self._run(plan, now, seconds)
        if self._observers.watch_steps:
            record = step_record(
                self.num_steps,
                now,
                plan,
                finished=finished,
                queues=self.scheduler.queues(),
                free_blocks=self.kv_cache.num_free,
                seconds=seconds,
            )
            self._observers.on_step(record)
        for phase, spent in seconds.items():
            self.seconds[phase] = self.seconds.get(phase, 0.0) + spent
        self.num_steps += 1
        return [*(group for group, _ in plan.ignored), *finished]

    def _run(self, plan: Schedule, now: float, seconds: dict[str, float]) -> list[SequenceGroup]:
        changes = self.kv_cache.take_changes()
        step = step_input(self.num_steps, plan, changes)
        if self._observers.watch_blocks:
            self._observers.on_blocks(step)
        for sequence, num_tokens in zip(plan.sequences, plan.num_tokens, strict=True):
            sequence.num_scheduled += num_tokens
        if self.kv_cache.notes_steps:
            for sequence in plan.sequences:
                sequence.last_step = self.num_steps
        if self._service is not None:
            for sequence, num_tokens in zip(plan.sequences, plan.num_tokens, strict=True):
                self._service.served(sequence.group, num_tokens, now)
        try:
            result = self.executor.collect(self.executor.submit(step))
        except Exception as error:  # noqa: BLE001 - whatever it is, only this step's requests end
            return self._fail(plan, changes, error)
        except BaseException as error:  # Ctrl-C: leave nothing half done for whoever catches it
            self._fail(plan, changes, error)
            raise
        started = perf_counter()
        finished = self._apply(plan, result)
        seconds.update(result.seconds)
        seconds["apply"] = perf_counter() - started
        return finished

    def _note(self, plan: Schedule, now: float) -> None:
        """Write down what became of whole groups."""
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
        for group, reason in plan.ignored:
            generated = any(sequence.output for sequence in group.live)
            self._finish_group(
                group, FinishReason.LENGTH if generated else FinishReason.IGNORED, reason
            )
            self._drop(group)
        if self._observers.watch_requests:
            events = {
                "preempted": plan.preempted,
                "swapped_out": plan.swapped_out,
                "swapped_in": plan.swapped_in,
                "admitted": [group for group, _ in plan.admitted],
            }
            for event, groups in events.items():
                for group in groups:
                    self._observers.on_request(group, event)

    # ------------------------------------------------------------------ applying a step

    def _apply(self, plan: Schedule, result: StepResult) -> list[SequenceGroup]:
        for sequence in plan.sequences:
            sequence.num_computed = sequence.num_scheduled
        if result.prompt_logprobs:
            self._keep_prompt_logprobs(result)
        ended = self._append(result)
        if result.candidates:
            ended |= self._advance_beams(result.candidates)
        for seq_id, message in result.failed.items():
            if seq_id in self._sequences:
                group = self._sequences[seq_id].group
                _log.warning("request_failed", request=group.id, reason=message)
                self._finish_group(group, FinishReason.ERROR, message)
                ended = True
        if not ended:
            return []
        groups = dict.fromkeys(sequence.group for sequence in plan.sequences)
        finished = [group for group in groups if not group.live]
        for group in finished:
            self._remove(group)
        return finished

    def _append(self, result: StepResult) -> bool:
        """Append what was drawn; whether any sequence ended with it."""
        sequences, ended = self._sequences, False
        heirs: dict[SeqId, Iterator[SequenceState]] = {}
        for row, token in enumerate(result.token_ids):
            seq_id = result.sequence_ids[row]
            if seq_id in heirs:
                sequence = next(heirs[seq_id])
                group = sequence.group
                if sequence.finish_reason is not None:
                    continue  # as below
            elif seq_id not in sequences:
                continue  # its request failed over a token of another sequence
            else:
                sequence = sequences[seq_id]
                group = sequence.group
                if not group.forked:
                    heirs[seq_id] = iter(self._fork(sequence))
                if group.first_token_at is None:
                    group.first_token_at = self.clock()
            tokens = sequence.tokens
            tokens.append(token)
            if result.logprobs is not None:
                _keep_logprobs(sequence, token, result.logprobs[row])
            if (
                len(tokens) >= group.max_length
                or token in group.stop_token_ids
                or group.stop_check is not None
            ) and self._has_ended(sequence, token):
                ended = True
        return ended

    def _fork(self, parent: SequenceState) -> list[SequenceState]:
        """Make the other sequences of a request whose prompt has been computed."""
        group = parent.group
        children = [
            SequenceState(SeqId(next(self._ids)), group, index, list(parent.tokens))
            for index in range(1, group.request.sampling.width)
        ]
        for child in children:
            self.kv_cache.fork(parent, child)
            self._sequences[child.id] = child
        group.sequences.extend(children)
        group.live.extend(children)
        group.forked = True
        return children

    def _advance_beams(self, candidates: Mapping[SeqId, Mapping[int, float]]) -> bool:
        """Let requests that search choose their next beams; whether any has ended with it."""
        ended = False
        owners = [self._sequences[seq_id].group for seq_id in candidates]
        for group in dict.fromkeys(owners):
            if self._beams.advance(group, candidates):
                if group.first_token_at is None:
                    group.first_token_at = self.clock()
                continue
            ended = True
            found = self._beams.found(group)
            if found:
                self._conclude(group, found)
            else:
                self._finish_group(group, FinishReason.ERROR, "every continuation is ruled out")
        return ended

    def _conclude(
        self, group: SequenceGroup, found: list[SequenceState], error: str | None = None
    ) -> None:
        """End a search: what it found takes the place of its beams."""
        for beam in list(group.live):
            self._finish(beam, FinishReason.LENGTH)
        group.sequences = found
        for sequence in found:
            sequence.error = error
            last = sequence.tokens[-1]
            stopped = sequence.finish_reason is FinishReason.STOP
            if stopped and last not in self.capacity.eos_token_ids:
                sequence.stop_reason = last

    def _has_ended(self, sequence: SequenceState, token: int) -> bool:
        """End a sequence whose newest token says so."""
        group = sequence.group
        length = len(sequence.tokens)
        if length - len(group.request.prompt) >= group.request.sampling.min_tokens:
            if token in group.stop_token_ids:
                if token not in self.capacity.eos_token_ids:
                    sequence.stop_reason = token
                self._finish(sequence, FinishReason.STOP)
                return True
            if group.stop_check is not None:
                try:
                    sequence.stop_reason = group.stop_check(sequence)
                except Exception as error:  # noqa: BLE001 - the request's own code
                    message = f"stop check failed: {type(error).__name__}: {error}"
                    _log.warning("request_failed", request=group.id, reason=message)
                    self._finish_group(group, FinishReason.ERROR, message)
                    return True
                if sequence.stop_reason is not None:
                    self._finish(sequence, FinishReason.STOP)
                    return True
        if length >= group.max_length:
            self._finish(sequence, FinishReason.LENGTH)
            return True
        return False

    def _finish(
        self, sequence: SequenceState, reason: FinishReason, error: str | None = None
    ) -> None:
        sequence.finish_reason, sequence.error = reason, error
        self.pins.settle(sequence)
        self.kv_cache.release(sequence)
        sequence.group.live.remove(sequence)
        del self._sequences[sequence.id]

    def _finish_group(
        self, group: SequenceGroup, reason: FinishReason, error: str | None = None
    ) -> None:
        searches = group.request.sampling.beam_width is not None
        if searches and reason is FinishReason.LENGTH:
            self._beams.cut(group)
            self._conclude(group, self._beams.found(group), error)
            return
        for sequence in list(group.live):
            self._finish(sequence, reason, error)
        if searches:
            del group.sequences[group.request.sampling.n :]

    def _remove(self, group: SequenceGroup) -> None:
        self.scheduler.remove(group)
        self._drop(group)

    def _drop(self, group: SequenceGroup) -> None:
        """Forget a finished group that the scheduler no longer holds."""
        group.status = Status.FINISHED
        if group.request.sampling.best_of is not None:
            keep_best(group)
        group.finished_at = self.clock()
        self._beams.end(group)
        del self._groups[group.id]
        if self._service is not None:
            self._service.left(group)
        self._observers.on_request(group, "finished")

    def _fail(
        self, plan: Schedule, changes: CacheChanges, error: BaseException
    ) -> list[SequenceGroup]:
        """A whole step raised: end the requests in it, and those whose blocks it was to move."""
        message = f"{type(error).__name__}: {error}"
        sequences = [*plan.sequences, *changes.added.values()]
        groups = dict.fromkeys([sequence.group for sequence in sequences])
        groups.update((group, None) for group in plan.swapped_out if group.live)
        _log.error("step_failed", requests=[group.id for group in groups], reason=message)
        self.kv_cache.retract(changes)
        for group in groups:
            self._finish_group(group, FinishReason.ERROR, message)
            self._remove(group)
        return list(groups)

    def _keep_prompt_logprobs(self, result: StepResult) -> None:
        for seq_id, entries in result.prompt_logprobs.items():
            group = self._sequences[seq_id].group
            kept = group.prompt_logprobs
            if kept is None:
                kept = group.prompt_logprobs = [None]
            kept.extend(entries[: len(group.request.prompt) - len(kept)])


def _keep_logprobs(sequence: SequenceState, token: int, logprobs: dict[int, float] | None) -> None:
    if logprobs is not None:
        sequence.cumulative_logprob = (sequence.cumulative_logprob or 0.0) + logprobs[token]
        if sequence.group.request.sampling.logprobs is not None:
            if sequence.logprobs is None:
                sequence.logprobs = []
            sequence.logprobs.append(logprobs)
