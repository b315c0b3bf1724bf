"""Steps that are planned, what came of them, counts of all since the start, and observers of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from paged_core.cache.changes import CacheChanges
from paged_core.checked.calls import check_result
from paged_core.errors import error_text
from paged_core.ids import BlockId, BlockKey, SeqId
from paged_core.interfaces.observer import BlockEvent, CacheEvent, Observer, StepRecord
from paged_core.interfaces.scheduler import Queues, Schedule
from paged_core.log import get_logger
from paged_core.request import FinishReason
from paged_core.sequence import SequenceGroup, SequenceState
from paged_core.step import NewSequence, StepInput, StepResult

_log = get_logger()


@dataclass(slots=True, eq=False)
class PlannedStep:
    """Record of a step until its result is applied; the next one may be planned meanwhile."""

    number: int
    now: float
    """Seconds on the engine's clock when it was planned."""
    plan: Schedule
    seconds: dict[str, float] = field(default_factory=dict)
    """Time spent on it, by phase."""
    changes: CacheChanges = field(default_factory=CacheChanges)
    """Changes of block tables for it."""
    ends: list[int] | None = None
    """Beside ``plan.sequences``: how many tokens of each are computed after it. ``None``: as many
    as are scheduled, since no other step is planned before its result is applied."""
    handle: Any = None
    """Handle that the executor returned for it."""
    sequence_ids: list[SeqId] = field(default_factory=list)
    """Ids of the batch, in order."""
    num_tokens: list[int] = field(default_factory=list)
    """Beside it: how many tokens the executor computes."""
    incomplete: set[SeqId] = field(default_factory=set)
    """Sequences of which tokens are pending after it: these sample none."""
    finished: list[SequenceGroup] = field(default_factory=list)
    """Requests that ended when its result was applied."""

    def check(self, result: StepResult, vocab_size: int | None) -> None:
        """Check that the executor answered what it was asked, in tokens of the vocabulary.

        Raises:
            PluginError: it did not.
        """
        sequences = self.plan.sequences
        check_result(result, sequences, self.sequence_ids, self.incomplete, vocab_size)

    def input(self, *, recompute: bool = False) -> StepInput:
        """Return what the executor is to do.

        Args:
            recompute: from the first token of each sequence; all of them are among those added.
        """
        plan, changes = self.plan, self.changes
        self.sequence_ids = [sequence.id for sequence in plan.sequences]
        self.num_tokens = plan.num_tokens
        if recompute:
            planned = zip(plan.sequences, plan.num_tokens, strict=True)
            self.num_tokens = [sequence.num_scheduled + count for sequence, count in planned]
        return StepInput(
            number=self.number,
            sequence_ids=self.sequence_ids,
            num_tokens=self.num_tokens,
            added=[_new_sequence(sequence, recompute) for sequence in changes.added.values()],
            removed=changes.removed,
            edit_ids=changes.edit_ids,
            edit_indices=changes.edit_indices,
            edit_blocks=changes.edit_blocks,
            copy_sources=list(changes.copies.values()),
            copy_targets=list(changes.copies),
            swap_out_sources=[source for source, _ in changes.swap_out],
            swap_out_targets=[target for _, target in changes.swap_out],
            swap_in_sources=list(changes.swap_in.values()),
            swap_in_targets=list(changes.swap_in),
        )

    def groups(self) -> list[SequenceGroup]:
        """Return the requests that it computes or moves, each once."""
        sequences = [*self.plan.sequences, *self.changes.added.values()]
        groups = dict.fromkeys(sequence.group for sequence in sequences)
        groups.update((group, None) for group in self.plan.swapped_out if group.live)
        return list(groups)


def _new_sequence(sequence: SequenceState, recompute: bool) -> NewSequence:
    """Return the data of a sequence that is new to the executor."""
    group = sequence.group
    sampling = group.request.sampling
    searches = sampling.beam_width is not None
    return NewSequence(
        id=sequence.id,
        request_id=group.id,
        tokens=list(sequence.tokens),
        num_prompt_tokens=len(group.request.prompt),
        num_computed=0 if recompute else sequence.num_scheduled,
        blocks=list(sequence.table.blocks),
        sampling=sampling,
        index=sequence.index,
        fan_out=1 if group.forked or searches else sampling.width,
        num_candidates=max(group.num_candidates, sampling.logprobs or 0) if searches else 0,
    )


@dataclass(slots=True, kw_only=True)
class EngineMetrics:
    """Counts since the start, and what there is now. Tokens are those of finished requests."""

    num_steps: int = 0
    num_unfinished: int = 0
    """Requests that wait or run now."""
    num_finished: int = 0
    """Requests that ended, for whatever reason."""
    num_failed: int = 0
    """Requests among them that ended with ``error`` or ``ignored``."""
    num_refused: int = 0
    """Requests that the admission refused; they are counted nowhere else."""
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    """Prompt tokens found in the cache when a request was first admitted."""
    num_generated_tokens: int = 0
    num_preemptions: int = 0
    """Preemptions of requests, to be computed again or swapped out."""
    num_recomputed_tokens: int = 0
    """Tokens that preemptions took and the cache did not give back at the next admission."""
    num_evictions: int = 0
    """Cached blocks whose content was given up for other content."""
    num_blocks: int = 0
    """Device blocks of the cache without those of pinned prefixes."""
    num_free_blocks: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Time spent by phase of a step: ``schedule``, ``model``, ``sample`` and so on."""

    def count(self, group: SequenceGroup) -> None:
        """Count a request that has ended."""
        failures = (FinishReason.ERROR, FinishReason.IGNORED)
        self.num_finished += 1
        self.num_failed += any(each.finish_reason in failures for each in group.sequences)
        self.num_prompt_tokens += len(group.request.prompt)
        self.num_cached_tokens += group.num_cached or 0
        self.num_generated_tokens += sum(len(each.output) for each in group.sequences)


@dataclass(slots=True)
class StepOutcome:
    """Which requests finished and which sequences gained a token: what a front end streams."""

    finished: list[SequenceGroup] = field(default_factory=list)
    """Requests that ended, for whatever reason."""
    advanced: list[SequenceState] = field(default_factory=list)
    """Sequences that gained a token, in batch order. Beams are left out: a search replaces their
    tokens until it has finished."""
    tokens: list[int] = field(default_factory=list)
    """Beside it: the token, which ``sequence.tokens`` ends with."""
    progressed: bool = False
    """True if the scheduler planned anything or a result was applied; if not, all requests wait."""

    def add(self, sequences: list[SequenceState | None], tokens: list[int]) -> None:
        """Name sequences that gained a token, beside it; ``None``: that token was dropped."""
        if not all(sequences):
            kept = [(each, token) for each, token in zip(sequences, tokens, strict=True) if each]
            sequences, tokens = [each for each, _ in kept], [token for _, token in kept]
        self.advanced += cast("list[SequenceState]", sequences)
        self.tokens += tokens


class StepRecorder:
    """Tells observers what they ask for and adds up the seconds of every phase.

    An observer that raises is dropped, so that watching an engine never changes what it does.
    """

    def __init__(self, observers: Sequence[Observer]) -> None:
        self.metrics = EngineMetrics()
        self.seconds: dict[str, float] = {}
        """Time spent so far, by phase."""
        self.observers = list(observers)
        """Observers that have not been dropped."""
        self.dropped: list[str] = []
        """Errors of those that have been, with the lines that raised."""
        self._watch_steps = self._any_overrides("on_step")
        self._watch_requests = self._any_overrides("on_request")
        self._watch_blocks = self._any_overrides("on_block")
        self.watches_cache = self._any_overrides("on_cache")
        """True if :meth:`cache` is to be called."""
        self._finished: list[SequenceGroup] = []

    def request(self, group: SequenceGroup, event: str) -> None:
        """Something happened to one request; that it finished is told after the step."""
        if event == "finished":
            self.metrics.count(group)
            self._finished.append(group)
            return
        self.metrics.num_refused += event == "refused"
        if self._watch_requests:
            self._tell("on_request", lambda observer: observer.on_request(group, event))

    def plan(self, plan: Schedule) -> None:
        """A step was planned: tell what happens to whole requests."""
        self.metrics.num_preemptions += len(plan.preempted) + len(plan.swapped_out)
        for group, cached in plan.admitted:
            self.metrics.num_recomputed_tokens += max(0, group.num_lost - cached)
        if self._watch_requests:
            for event in ("preempted", "swapped_out", "swapped_in"):
                for group in getattr(plan, event):
                    self.request(group, event)
            for group, _ in plan.admitted:
                self.request(group, "admitted")

    def blocks(self, step: StepInput) -> None:
        """A step is submitted: tell of every block table entry that it changes."""
        if self._watch_blocks:
            for event in _block_events(step):
                self._tell("on_block", lambda observer, event=event: observer.on_block(event))

    def cache(self, block: BlockId | None, key: BlockKey | None) -> None:
        """Change of what the prefix cache finds."""
        event = CacheEvent(block=block, key=key)
        self._tell("on_cache", lambda observer: observer.on_cache(event))

    def step(
        self,
        step: PlannedStep,
        queues: Callable[[], Queues],
        num_free: int,
        clock: Callable[[], float],
    ) -> None:
        """The result of a step was applied, or there was nothing to compute in it."""
        if step.changes.evicted:
            self.metrics.num_evictions += len(step.changes.evicted)
        for phase, spent in step.seconds.items():
            self.seconds[phase] = self.seconds.get(phase, 0.0) + spent
        if self._watch_steps:
            record = _step_record(step, queues(), num_free, clock())
            self._tell("on_step", lambda observer: observer.on_step(record))
        self.tell_finished()

    def tell_finished(self) -> None:
        """Tell of the requests that finished in the step that was told, or outside of any."""
        finished, self._finished = self._finished, []
        for group in finished:
            self._tell("on_request", lambda each, group=group: each.on_request(group, "finished"))

    def close(self) -> None:
        """Close the observers."""
        self._tell("close", lambda observer: observer.close())

    def _any_overrides(self, method: str) -> bool:
        default = getattr(Observer, method)
        return any(getattr(type(observer), method) is not default for observer in self.observers)

    def _tell(self, event: str, tell: Callable[..., Any]) -> None:
        for observer in list(self.observers):
            try:
                tell(observer)
            except Exception as error:  # noqa: BLE001 - the plugin boundary
                self.observers.remove(observer)
                name, reason = type(observer).__name__, error_text(error)
                self.dropped.append(f"{name}.{event}() raised {reason}")
                _log.warning("observer_dropped", observer=name, during=event, reason=reason)


def _step_record(step: PlannedStep, queues: Queues, num_free: int, ended: float) -> StepRecord:
    plan, changes = step.plan, step.changes
    scheduled: dict[str, int] = {}
    hits: dict[str, list[BlockId]] = {}
    for seq_id, blocks in changes.hits.items():
        hits.setdefault(changes.added[seq_id].group.id, []).extend(blocks)
    for sequence, num_tokens in zip(plan.sequences, plan.num_tokens, strict=True):
        name = sequence.group.id
        scheduled[name] = scheduled.get(name, 0) + num_tokens
    return StepRecord(
        number=step.number,
        now=step.now,
        scheduled=scheduled,
        cached={group.id: cached for group, cached in plan.admitted},
        preempted=[group.id for group in plan.preempted],
        swapped_out=[group.id for group in plan.swapped_out],
        swapped_in=[group.id for group in plan.swapped_in],
        ignored=[group.id for group, _ in plan.ignored],
        finished=[group.id for group in step.finished],
        queues=queues,
        free_blocks=num_free,
        seconds=step.seconds,
        ended=ended,
        evicted=changes.evicted,
        hits=hits,
        copied_blocks=len(changes.copies),
        swapped_blocks=len(changes.swap_out) + len(changes.swap_in),
    )


def _block_events(step: StepInput) -> Iterable[BlockEvent]:
    number = step.number
    for seq_id in step.removed:
        yield BlockEvent(step=number, sequence=seq_id, index=None, block=None)
    for new in step.added:
        for index, block in enumerate(new.blocks):
            yield BlockEvent(step=number, sequence=new.id, index=index, block=block)
    for seq_id, index, block in zip(
        step.edit_ids, step.edit_indices, step.edit_blocks, strict=True
    ):
        yield BlockEvent(step=number, sequence=seq_id, index=index, block=block)
