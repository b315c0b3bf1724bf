"""The requests that have not finished: their sequences, the tokens they gain, how they end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import count

from paged_core.cache.kv_cache import KVCache
from paged_core.engine.outcome import PlannedStep, StepOutcome
from paged_core.errors import PluginError, RequestError, error_text
from paged_core.ids import SeqId
from paged_core.interfaces.schedule import Schedule
from paged_core.log import get_logger
from paged_core.request import FinishReason, Request
from paged_core.requests.beams import Beams, keep_best
from paged_core.requests.pins import Pins
from paged_core.requests.waiting import Demand
from paged_core.sequence import BlockTable, SequenceGroup, SequenceState, Status, StopCheck
from paged_core.step import StepResult

_log = get_logger()


class LiveRequests:
    """Applies results of steps to sequences, and releases the blocks of those that end."""

    def __init__(self, kv_cache: KVCache, pins: Pins, demand: Demand) -> None:
        self.groups: dict[str, SequenceGroup] = {}
        """By request id, in order of arrival."""
        self._kv = kv_cache
        self._pins, self.demand = pins, demand
        self._sequences: dict[SeqId, SequenceState] = {}
        self._numbers = count()
        self._ids = count()
        self._beams = Beams(kv_cache, self._sequences, self._ids)

    @property
    def sequence_ids(self) -> Iterable[SeqId]:
        """Ids of all sequences that have not finished."""
        return self._sequences

    # ------------------------------------------------------------------ adding

    def make(
        self,
        request: Request,
        stop_check: StopCheck | None,
        *,
        max_length: int,
        eos_token_ids: frozenset[int],
    ) -> SequenceGroup:
        """Return the group of a request, to be added; its sequences end at ``max_length``.

        Raises:
            RequestError: its id is in use.
        """
        if request.id in self.groups:
            raise RequestError(
                f"request {request.id!r} is being served already; give each request its own id"
            )
        ends = frozenset() if request.sampling.ignore_eos else eos_token_ids
        return SequenceGroup(
            request,
            next(self._numbers),
            SeqId(next(self._ids)),
            max_length=max_length,
            eos_token_ids=ends,
            stop_token_ids=ends.union(request.sampling.stop_token_ids),
            stop_check=stop_check,
        )

    def add(self, group: SequenceGroup) -> None:
        """Keep a group that :meth:`make` returned."""
        self.groups[group.id] = group
        self._sequences[group.live[0].id] = group.live[0]
        if group.request.sampling.beam_width is not None:
            self._beams.start(group)
        self.demand.update([group], self._kv)

    def record_admissions(self, plan: Schedule, now: float) -> None:
        """Keep with the requests which of them a plan admits and preempts; PluginError if it
        admits a group that is none of them."""
        for group, cached in plan.admitted:
            if group.id not in self.groups:
                raise PluginError(f"schedule() admitted {group}, which the scheduler does not hold")
            if group.num_cached is None:
                group.num_cached, group.admitted_at = cached, now
        for group in (*plan.preempted, *plan.swapped_out):
            group.waiting_since = now  # for schedulers that set the status alone
            group.num_preemptions += 1
        self.demand.update((*(group for group, _ in plan.admitted), *plan.preempted), self._kv)

    def forget(self, group: SequenceGroup) -> None:
        """Forget a group that could not be added whole; it holds no blocks yet."""
        self.groups.pop(group.id, None)
        for sequence in group.sequences:
            self._sequences.pop(sequence.id, None)
        self._beams.end(group)
        self.demand.forget(group)

    # ------------------------------------------------------------------ results

    def expect(self, step: PlannedStep) -> None:
        """Count the tokens that a step in flight samples, so that the next one can be planned.

        Left out are sequences that end with this step, that fork, or that a search replaces:
        nothing can be planned for them before the result is there.
        """
        for sequence in step.plan.sequences:
            group = sequence.group
            if (
                not sequence.num_pending
                and group.forked
                and group.request.sampling.beam_width is None
                and sequence.num_tokens + 1 < group.max_length
            ):
                sequence.num_unknown += 1

    def apply(
        self, step: PlannedStep, result: StepResult, outcome: StepOutcome, now: float
    ) -> list[SequenceGroup]:
        """Append what a step sampled, add it to ``outcome``; return the requests that ended."""
        self._advance(step)
        if result.prompt_logprobs:
            self._keep_prompt_logprobs(step, result)
        ended = self._append(step, result, outcome, now)
        if result.candidates:
            ended |= self._advance_beams(result.candidates, now)
        for seq_id, message in result.failed.items():
            if seq_id in self._sequences:
                self.fail(self._sequences[seq_id].group, message)
                ended = True
        if not ended:
            return []
        groups = dict.fromkeys(sequence.group for sequence in step.plan.sequences)
        return [group for group in groups if not group.live and group.id in self.groups]

    def _advance(self, step: PlannedStep) -> None:
        """Note how far sequences are computed."""
        if step.ends is None:
            for sequence in step.plan.sequences:
                sequence.num_computed = sequence.num_scheduled
            return
        for sequence, end in zip(step.plan.sequences, step.ends, strict=True):
            if sequence.num_scheduled >= end:  # if not, it was preempted since
                sequence.num_computed = end

    def _append(
        self, step: PlannedStep, result: StepResult, outcome: StepOutcome, now: float
    ) -> bool:
        """Append what was sampled; whether any sequence ended."""
        is_ahead = step.ends is not None  # then the tokens are counted already
        rows: list[SequenceState | None]
        if is_ahead or result.sequence_ids != step.sequence_ids:
            rows = list(map(self._sequences.get, result.sequence_ids))
        else:
            rows = list(step.plan.sequences)
        logprobs, ended = result.logprobs, False
        for row, token in enumerate(result.token_ids):
            sequence = rows[row]
            if sequence is None or (ended and sequence.finish_reason is not None):
                rows[row] = None  # its request ended since, or failed over another row
                continue
            group, tokens = sequence.group, sequence.tokens
            if not group.forked:
                self._fork(sequence, rows, row)
            if group.first_token_at is None:
                group.first_token_at = now
            tokens.append(token)
            if is_ahead and sequence.num_unknown:
                sequence.num_unknown -= 1
            if logprobs is not None:
                _keep_logprobs(sequence, token, logprobs[row])
            if (
                len(tokens) >= group.max_length
                or token in group.stop_token_ids
                or group.stop_check is not None
            ) and self._has_ended(sequence, token):
                ended = True
        outcome.add(rows, result.token_ids)
        return ended

    def _fork(self, parent: SequenceState, rows: list[SequenceState | None], first: int) -> None:
        """Make the other sequences of a request, which get the parent's rows after ``first``."""
        group = parent.group
        children = [
            SequenceState(SeqId(next(self._ids)), group, index, list(parent.tokens))
            for index in range(1, group.request.sampling.width)
        ]
        for child in children:
            self._kv.fork(parent, child)
            self._sequences[child.id] = child
        group.sequences.extend(children)
        group.live.extend(children)
        group.forked = True
        others = [row for row in range(first + 1, len(rows)) if rows[row] is parent]
        for row, child in zip(others, children, strict=False):
            rows[row] = child

    def _advance_beams(self, candidates: Mapping[SeqId, Mapping[int, float]], now: float) -> bool:
        """Let requests that search choose their next beams; whether any has ended with it."""
        ended = False
        beams = [self._sequences[seq_id] for seq_id in candidates if seq_id in self._sequences]
        for group in dict.fromkeys(beam.group for beam in beams):
            if self._beams.advance(group, candidates):
                if group.first_token_at is None:
                    group.first_token_at = now
                continue
            ended = True
            found = self._beams.found(group)
            if found:
                self._conclude(group, found)
            else:
                self.finish(group, FinishReason.ERROR, "every continuation is ruled out")
        return ended

    def _keep_prompt_logprobs(self, step: PlannedStep, result: StepResult) -> None:
        """Add those of one chunk. What is known stays: a preempted prompt is computed again, and
        a request that was preempted while its last chunk was in flight may end with that step."""
        ends = step.ends or [sequence.num_scheduled for sequence in step.plan.sequences]
        chunks = zip(step.sequence_ids, step.num_tokens, ends, strict=True)
        starts = {seq_id: end - count for seq_id, count, end in chunks}
        for seq_id, entries in result.prompt_logprobs.items():
            if seq_id not in self._sequences or seq_id not in starts:
                continue
            group = self._sequences[seq_id].group
            kept = group.prompt_logprobs or [None]
            num_known = len(kept) - 1 - starts[seq_id]
            if num_known >= 0:
                group.prompt_logprobs = kept
                kept.extend(entries[num_known:][: len(group.request.prompt) - len(kept)])

    # ------------------------------------------------------------------ ending

    def _has_ended(self, sequence: SequenceState, token: int) -> bool:
        """End a sequence whose newest token says so."""
        group = sequence.group
        length = len(sequence.tokens)
        if length - len(group.request.prompt) >= group.request.sampling.min_tokens:
            if token in group.stop_token_ids:
                if token not in group.eos_token_ids:
                    sequence.stop_reason = token
                self._finish(sequence, FinishReason.STOP)
                return True
            if group.stop_check is not None:
                try:
                    sequence.stop_reason = group.stop_check(sequence)
                except Exception as error:  # noqa: BLE001 - the request's own code
                    self.fail(group, f"stop check failed: {error_text(error)}")
                    return True
                if sequence.stop_reason is not None:
                    self._finish(sequence, FinishReason.STOP)
                    return True
        if length >= group.max_length:
            self._finish(sequence, FinishReason.LENGTH)
            return True
        return False

    def fail(self, group: SequenceGroup, message: str) -> None:
        """End one request because its own code raised."""
        _log.warning("request_failed", request=group.id, reason=message)
        self.finish(group, FinishReason.ERROR, message)

    def finish(self, group: SequenceGroup, reason: FinishReason, error: str | None = None) -> None:
        """End all sequences of a request that still run, and take their blocks."""
        searches = group.request.sampling.beam_width is not None
        if searches and reason is FinishReason.LENGTH:
            self._beams.cut(group)
            self._conclude(group, self._beams.found(group), error)
            return
        for sequence in list(group.live):
            self._finish(sequence, reason, error)
        if searches:
            del group.sequences[group.request.sampling.n :]

    def abandon(self, reason: str, now: float) -> list[SequenceGroup]:
        """End and forget all requests; the blocks that they held are not to be freed."""
        ended = list(self.groups.values())
        self.demand.begin(None)
        for group in ended:
            searches = bool(group.live) and group.request.sampling.beam_width is not None
            for sequence in group.sequences if searches else group.live:
                if searches or sequence.finish_reason is None:
                    sequence.finish_reason, sequence.error = FinishReason.ERROR, reason
                sequence.num_unknown, sequence.table = 0, BlockTable()
            group.live.clear()
            if searches:
                del group.sequences[group.request.sampling.n :]
            self.remove(group, now)
        self._sequences.clear()
        return ended

    def remove(self, group: SequenceGroup, now: float) -> None:
        """Forget a request that has ended; choose what it returns."""
        group.status = Status.FINISHED
        if group.request.sampling.best_of is not None:
            keep_best(group)
        group.finished_at = now
        if group.request.sampling.beam_width is not None:
            self._beams.end(group)
        self.demand.forget(group)
        del self.groups[group.id]

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
            if stopped and last not in group.eos_token_ids:
                sequence.stop_reason = last

    def _finish(
        self, sequence: SequenceState, reason: FinishReason, error: str | None = None
    ) -> None:
        sequence.finish_reason, sequence.error = reason, error
        sequence.num_unknown = 0
        if self._pins.by_id:
            self._pins.hold_or_end(sequence)
        self._kv.release(sequence)
        sequence.group.live.remove(sequence)
        del self._sequences[sequence.id]


def _keep_logprobs(sequence: SequenceState, token: int, logprobs: dict[int, float] | None) -> None:
    if logprobs is not None:
        sequence.cumulative_logprob = (sequence.cumulative_logprob or 0.0) + logprobs[token]
        if sequence.group.request.sampling.logprobs is not None:
            if sequence.logprobs is None:
                sequence.logprobs = []
            sequence.logprobs.append(logprobs)
