"""Fills the record of a run while it runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from paged_core.cache.kv_cache import KVCache
from paged_core.engine.engine import Engine
from paged_core.engine.outcome import StepOutcome
from paged_core.ids import BlockId
from paged_core.interfaces.observer import Observer
from paged_core.sequence import SequenceGroup, Status
from paged_plugins.lab.cost_model import StepWork
from paged_plugins.lab.runs.run_record import (
    RunRecord,
    StepSample,
    ended_record,
    refused_records,
)
from paged_plugins.lab.runs.time_histogram import TokenGaps
from paged_plugins.workloads.serving import Arrival, Refusal, deciding_sequence


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Slots by what they are used for, as in figure 2 of the PagedAttention paper (Kwon et al.,
    SOSP 2023); the rest can be used by requests that wait."""

    held: int
    """Hold the state of a token; a block that several sequences share counts once."""
    reserved: int
    """Slots of held blocks that will hold a token later."""
    internal: int
    """Slots of held blocks that never will (internal fragmentation)."""
    external: int
    """Free, but in runs too short for the request that waits longest (external fragmentation)."""
    idle: int
    """Free, but findable by their content until they are evicted."""


def memory_use(
    kv_cache: KVCache, running: Iterable[SequenceGroup], waiting: SequenceGroup | None
) -> MemoryUse:
    """Look at the blocks of the running requests that are not full; all others in use are.

    Args:
        running: all requests that hold blocks.
        waiting: the request that waits longest.
    """
    size = kv_cache.block_size
    tails: dict[BlockId, tuple[int, int]] = {}
    for group in running:
        last = group.max_length - 1  # the state of the last token is never computed
        for sequence in group.live:
            table, held = sequence.table, sequence.num_computed
            for index in range(max(held // size, table.num_cached), len(table.blocks)):
                block, start = table.blocks[index], index * size
                now = max(0, held - start)
                later = max(now, min(size, last - start))
                if block in tails:  # shared since a fork
                    now, later = max(now, tails[block][0]), max(later, tails[block][1])
                tails[block] = now, later
    full = kv_cache.num_blocks - kv_cache.num_free - len(tails)
    held = sum([now for now, _ in tails.values()])
    with_reserved = sum([later for _, later in tails.values()])
    blocked = waiting is not None and not kv_cache.can_start(waiting.live[0])
    return MemoryUse(
        held=size * full + held,
        reserved=with_reserved - held,
        internal=size * len(tails) - with_reserved,
        external=size * kv_cache.num_free if blocked else 0,
        idle=size * max(0, kv_cache.num_cached - full),
    )


class RunCollector(Observer):
    """Collects what the requests and steps of one engine did.

    Memory and queues are looked at after some steps only, evenly spread, so that it costs little:
    after every one in a short run, and after fewer the longer the run gets.

    Args:
        max_samples: steps that are kept at most.
        start: seconds on the engine's clock at which the run starts.
    """

    def __init__(self, max_samples: int) -> None:
        self.record = RunRecord()
        self.start = 0.0
        self._gaps = TokenGaps(self.record.token_gaps)
        self._active: dict[SequenceGroup, None] = {}
        """Requests that run or are swapped out."""
        self._max_samples = max_samples
        self._stride = 1
        """A step of so many is looked at."""
        self._unweighted = 0.0
        """Busy seconds since memory was last looked at."""
        self._weights = 0.0
        self._sums = dict.fromkeys(("held", "reserved", "internal", "external"), 0.0)
        """Slots times busy seconds."""

    # ------------------------------------------------------------------ requests

    def on_request(self, group: SequenceGroup, event: str, /) -> None:
        if event == "admitted":
            self._active[group] = None
        elif event in {"preempted", "finished"}:
            self._active.pop(group, None)

    def refused(self, arrival: Arrival, now: float, refusal: Refusal) -> None:
        """The engine did not take on a request."""
        self.record.requests += refused_records(arrival, now, refusal)
        self.record.tell(refusal.is_error, refusal.reason)

    def ended(self, group: SequenceGroup, arrival: Arrival) -> None:
        """A request ended; ``group`` is as it stands after that."""
        record = ended_record(group, arrival, self.start)
        self.record.requests.append(record)
        self.record.tell(record.is_failed, deciding_sequence(group).error)

    # ------------------------------------------------------------------ steps

    def step(
        self,
        engine: Engine,
        outcome: StepOutcome,
        work: Sequence[StepWork],
        began: float,
        ended: float,
    ) -> None:
        """A step was run.

        Args:
            work: of the steps that were collected meanwhile; none: nothing was computed.
            began, ended: seconds from the start of the run.
        """
        self._gaps.step(outcome.advanced, ended)
        totals = self.record.totals
        for each in work:
            totals.count(each)
        totals.busy_seconds += ended - began
        self._unweighted += ended - began
        if work and totals.num_steps % self._stride == 0:
            self._sample(engine, work[-1], began, ended)

    def finish(self, engine: Engine) -> RunRecord:
        """Return the record of the run, which has ended."""
        requests, totals = self.record.requests, self.record.totals
        if requests:
            totals.elapsed = requests[-1].finished - min(each.arrival for each in requests)
        needed = sum(each.needed_tokens for each in requests)
        totals.recomputed_tokens = max(0, totals.scheduled_tokens - needed)
        totals.num_preemptions = engine.metrics.num_preemptions
        totals.num_evictions = engine.metrics.num_evictions
        slots = engine.kv_cache.num_blocks * engine.kv_cache.block_size * self._weights
        if slots:
            for use, total in self._sums.items():
                setattr(totals, f"{use}_share", total / slots)
        return self.record

    def _sample(self, engine: Engine, work: StepWork, began: float, ended: float) -> None:
        kv_cache, num_active = engine.kv_cache, len(self._active)
        num_swapped = 0
        if kv_cache.num_host_blocks:
            num_swapped = sum(group.status is Status.SWAPPED for group in self._active)
        num_waiting = engine.metrics.num_unfinished - num_active
        longest = None
        if num_waiting and kv_cache.reserves_runs:
            longest = next((each for each in engine.groups if each not in self._active), None)
        use = memory_use(kv_cache, self._active, longest)
        weight, self._unweighted = self._unweighted, 0.0
        for kind in self._sums:
            self._sums[kind] += weight * getattr(use, kind)
        self._weights += weight
        self.record.steps.append(
            StepSample(
                time=began,
                seconds=ended - began,
                num_running=num_active - num_swapped,
                num_waiting=num_waiting,
                num_swapped=num_swapped,
                prefill_tokens=work.prefill_tokens,
                decode_tokens=work.decode_sequences,
                num_blocks=kv_cache.num_blocks,
                block_size=kv_cache.block_size,
                free_blocks=kv_cache.num_free,
                cached_blocks=use.idle // kv_cache.block_size,
                held_tokens=use.held,
                reserved_tokens=use.reserved,
            )
        )
        if len(self.record.steps) >= self._max_samples:
            del self.record.steps[::2]
            self._stride *= 2
