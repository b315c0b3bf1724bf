"""The work in the steps of an engine, counted from what its executor is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from paged_core.ids import SeqId
from paged_core.interfaces.executor import Capacity, Executor
from paged_core.step import NewSequence, StepInput, StepResult
from paged_plugins.lab.cost_model import StepWork


@dataclass(slots=True, eq=False)
class CountedSequence:
    """A sequence that an executor knows, as far as it determines the cost of its steps."""

    id: SeqId
    new: NewSequence
    num_tokens: int
    """With the token that it draws next, once all before are computed."""
    num_computed: int
    growth: int
    """Tokens that it gains once all are computed: 1; a beam is sent anew, with the token chosen."""


class WorkCount:
    """Counts the work in each step of one executor; steps are given in their order."""

    def __init__(self) -> None:
        self._sequences: dict[SeqId, CountedSequence] = {}

    def take(self, step: StepInput) -> tuple[StepWork, list[CountedSequence]]:
        """Return the work in a step, and the sequences of which it computes the last token."""
        sequences = self._sequences
        for seq_id in step.removed:
            sequences.pop(seq_id, None)
        for new in step.added:
            growth = 0 if new.num_candidates else 1
            sequences[new.id] = CountedSequence(
                new.id, new, len(new.tokens), new.num_computed, growth
            )
        batch = [sequences[seq_id] for seq_id in step.sequence_ids]
        complete: list[CountedSequence] = []
        prefills = tokens = pairs = context = decodes = decode_context = 0
        for sequence, count in zip(batch, step.num_tokens, strict=True):
            start = sequence.num_computed
            sequence.num_computed = end = start + count
            if end >= sequence.num_tokens:
                sequence.num_tokens = end + sequence.growth
                complete.append(sequence)
                if count == 1:
                    decodes += 1
                    decode_context += start
                    continue
            prefills += 1
            tokens += count
            pairs += count * start + count * (count + 1) // 2
            context += start
        work = StepWork(
            prefill_tokens=tokens,
            prefill_sequences=prefills,
            prefill_pairs=pairs,
            prefill_context=context,
            decode_sequences=decodes,
            decode_context=decode_context,
            sampled_rows=len(complete),
            copied_blocks=len(step.copy_sources),
            swapped_blocks=len(step.swap_out_sources) + len(step.swap_in_sources),
        )
        return work, complete

    def clear(self) -> None:
        """Forget all sequences."""
        self._sequences.clear()


@runtime_checkable
class CountsWork(Protocol):
    """An executor that says what its steps computed."""

    watch: Callable[[StepWork], None]
    """Called with the work of each step that is collected."""
    num_extrapolated: int
    """Steps whose time lies beyond what a cost model was made from."""


class WatchedExecutor(Executor):
    """Hands every call on to another executor, which has been started."""

    def __init__(self, inner: Executor) -> None:
        self._inner = inner
        self._count = WorkCount()
        self.watch: Callable[[StepWork], None] = lambda work: None
        self.num_extrapolated = 0

    def start(self) -> Capacity:
        return self._inner.start()

    def submit(self, step: StepInput, /) -> Any:
        work, _ = self._count.take(step)
        return work, self._inner.submit(step)

    def collect(self, handle: Any, /) -> StepResult:
        work, inner = handle
        result = self._inner.collect(inner)
        self.watch(work)
        return result

    def close(self) -> None:
        self._inner.close()
