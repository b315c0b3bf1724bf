"""Reports of steps to observers, with the time that each phase takes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from paged_core.engine.outcome import EngineMetrics, PlannedStep
from paged_core.errors import error_text
from paged_core.ids import BlockId, BlockKey
from paged_core.interfaces.observer import BlockEvent, CacheEvent, Observer, StepRecord
from paged_core.interfaces.scheduler import Queues, Schedule
from paged_core.log import get_logger
from paged_core.sequence import SequenceGroup
from paged_core.step import StepInput

_log = get_logger()


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
        elif self._watch_requests:
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
                _log.warning(
                    "observer_dropped",
                    observer=type(observer).__name__,
                    during=event,
                    reason=error_text(error),
                )


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
