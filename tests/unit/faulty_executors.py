"""Executors that are wrong on purpose: the conformance class must catch each."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Event, Thread
from time import sleep
from typing import Any, ClassVar, Literal

import numpy as np

from paged_backends.executors.memory import MemoryExecutor
from paged_backends.executors.settings import MemorySettings
from paged_core.ids import SeqId
from paged_core.interfaces.executor import Capacity
from paged_core.step import NewSequence, StepInput, StepResult


class FaultyMemorySettings(MemorySettings):
    """Options of ``memory``."""

    name: Literal["faulty"] = "faulty"  # type: ignore[assignment]


class BoastingExecutor(MemoryExecutor):
    """Says that there is more room than there is."""

    def start(self) -> Capacity:
        capacity = super().start()
        return replace(capacity, num_blocks=capacity.num_blocks + 1)


class OnceExecutor(MemoryExecutor):
    """Cannot be started again."""

    def start(self) -> Capacity:
        if self._device._num_blocks:
            raise RuntimeError("it has started")
        return super().start()


class ThreadExecutor(MemoryExecutor):
    """Leaves a thread behind."""

    def start(self) -> Capacity:
        Thread(target=Event().wait, args=(60,), daemon=True).start()
        return super().start()


class PooledExecutor(MemoryExecutor):
    """Runs steps in two threads, as these come to it."""

    def start(self) -> Capacity:
        self.close()
        self.pool = ThreadPoolExecutor(2)
        return super().start()

    def submit(self, step: StepInput, /) -> Any:
        return self.pool.submit(self.run, super().submit(step), len(step.added))

    def run(self, handle: Any, num_added: int) -> StepResult:
        """Run a step, which takes longer for prompts."""
        sleep(0.01 * num_added)
        return super().collect(handle)

    def collect(self, handle: Any, /) -> StepResult:
        found: StepResult = handle.result()
        return found

    def close(self) -> None:
        if hasattr(self, "pool"):
            self.pool.shutdown()
        super().close()


class HeedlessExecutor(MemoryExecutor):
    """Asks no logits processor, and says nothing of it."""

    def collect(self, handle: Any, /) -> StepResult:
        for sequence in self._sequences.values():
            sequence.new = _without_processors(sequence.new)
        step = replace(handle, added=[_without_processors(new) for new in handle.added])
        return super().collect(step)


def _without_processors(new: NewSequence) -> NewSequence:
    return replace(new, sampling=replace(new.sampling, logits_processors=()))


class ChunkExecutor(MemoryExecutor):
    """Has log-probabilities of prompt tokens alone that are in one chunk with those before."""

    def collect(self, handle: Any, /) -> StepResult:
        result = super().collect(handle)
        for seq_id, entries in result.prompt_logprobs.items():
            if self._sequences[seq_id].num_computed < self._sequences[seq_id].new.num_prompt_tokens:
                entries.pop()
        return result


class UnlikelyExecutor(MemoryExecutor):
    """Returns no log-probabilities."""

    def collect(self, handle: Any, /) -> StepResult:
        return replace(super().collect(handle), logprobs=None)


class _DeafExecutor(MemoryExecutor):
    """Does not hear of some of what a step asks for."""

    unheard: tuple[str, ...]

    def submit(self, step: StepInput, /) -> Any:
        return replace(step, **{name: [] for name in self.unheard})


class LosingExecutor(_DeafExecutor):
    """Loses what was moved to the host."""

    unheard = ("swap_in_sources", "swap_in_targets")


class HastyExecutor(MemoryExecutor):
    """Moves blocks in before it has moved others out."""

    def _move_blocks(self, step: StepInput) -> None:
        nothing: dict[str, Any] = {"swap_in_sources": [], "swap_in_targets": []}
        super()._move_blocks(
            StepInput(
                number=step.number,
                swap_in_sources=step.swap_in_sources,
                swap_in_targets=step.swap_in_targets,
            )
        )
        super()._move_blocks(replace(step, **nothing))


class EagerExecutor(MemoryExecutor):
    """Draws before the prompt is computed."""

    def collect(self, handle: Any, /) -> StepResult:
        result = super().collect(handle)
        for seq_id in handle.sequence_ids:
            if seq_id not in result.sequence_ids:
                result.sequence_ids.append(seq_id)
                result.token_ids.append(0)
        return result


class ShufflingExecutor(MemoryExecutor):
    """Gives each the token of another."""

    def collect(self, handle: Any, /) -> StepResult:
        result = super().collect(handle)
        result.token_ids.reverse()
        return result


class SociableExecutor(MemoryExecutor):
    """Samples depend on the other sequences of the batch."""

    def collect(self, handle: Any, /) -> StepResult:
        result = super().collect(handle)
        num_others = len(handle.sequence_ids) - 1
        tokens = [(token + num_others) % 1000 for token in result.token_ids]
        for seq_id, token in zip(result.sequence_ids, tokens, strict=True):
            self._sequences[seq_id].tokens[-1] = token
        return replace(result, token_ids=tokens)


class RememberingExecutor(MemoryExecutor):
    """Keeps removed sequences, and ignores it when they are added again."""

    def _learn(self, step: StepInput) -> None:
        strangers = [new for new in step.added if new.id not in self._sequences]
        super()._learn(replace(step, added=strangers, removed=[]))


class WaitingExecutor(MemoryExecutor):
    """Waits for a result that does not come."""

    def collect(self, handle: Any, /) -> StepResult:
        if len(handle.sequence_ids) > 1:
            Event().wait()
        return super().collect(handle)


class StepwiseExecutor(MemoryExecutor):
    """Copies block by block, over blocks that are still to be read."""

    def _move_blocks(self, step: StepInput) -> None:
        nothing: dict[str, Any] = {"copy_sources": [], "copy_targets": []}
        super()._move_blocks(replace(step, **nothing))
        for source, target in zip(step.copy_sources, step.copy_targets, strict=True):
            self._device[target] = list(self._device[source])


class SingleFileExecutor(MemoryExecutor):
    """Knows only the step that was submitted last."""

    last: StepInput | None = None

    def submit(self, step: StepInput, /) -> Any:
        self.last = step
        return step

    def collect(self, handle: Any, /) -> StepResult:
        return super().collect(self.last)


class UneditedExecutor(_DeafExecutor):
    """Does not learn which blocks a sequence has got."""

    unheard = ("edit_ids", "edit_indices", "edit_blocks")


class OnceClosedExecutor(MemoryExecutor):
    """Can be closed once."""

    is_closed = False

    def close(self) -> None:
        if self.is_closed:
            raise RuntimeError("it is closed already")
        self.is_closed = True


class KeepingExecutor(MemoryExecutor):
    """Keeps every step."""

    def submit(self, step: StepInput, /) -> Any:
        self.__dict__.setdefault("seen", []).append(step)
        return super().submit(step)


class AlikeExecutor(MemoryExecutor):
    """Draws the same for all sequences of a request."""

    def _sample(self, new: NewSequence, tokens: Sequence[int], index: int) -> int:
        return super()._sample(new, tokens, 0)


class LastExecutor(MemoryExecutor):
    """Goes on from the last of the tokens that a sequence sampled for others."""

    def collect(self, handle: Any, /) -> StepResult:
        result = super().collect(handle)
        for seq_id, token in zip(result.sequence_ids, result.token_ids, strict=True):
            self._sequences[seq_id].tokens[-1] = token
        return result


class OneStreamExecutor(MemoryExecutor):
    """Draws for all requests from one stream."""

    num_drawn = 0

    def _sample(self, new: NewSequence, tokens: Sequence[int], index: int) -> int:
        self.num_drawn += new.sampling.temperature > 0
        return super()._sample(new, [*tokens, self.num_drawn], index)


class HashingExecutor(MemoryExecutor):
    """Draws by the hash of a string."""

    def _sample(self, new: NewSequence, tokens: Sequence[int], index: int) -> int:
        return super()._sample(new, [*tokens, hash(str(tokens)) % 97], index)


class CommonExecutor(MemoryExecutor):
    """Keeps the sequences of all executors in one table."""

    _all: ClassVar[dict[SeqId, Any]] = {}

    def __init__(self, options: Any, context: Any, /) -> None:
        super().__init__(options, context)
        self._sequences = self._all

    def close(self) -> None:
        self._all.clear()


class SwallowingExecutor(MemoryExecutor):
    """Takes a step that failed for one that sampled nothing."""

    def collect(self, handle: Any, /) -> StepResult:
        try:
            return super().collect(handle)
        except Exception:  # noqa: BLE001 - what is wrong with it
            return StepResult()


class ForgetfulExecutor(MemoryExecutor):
    """Samples when the prompt is computed, also where more tokens are known."""

    def collect(self, handle: Any, /) -> StepResult:
        result = super().collect(handle)
        for seq_id in handle.sequence_ids:
            sequence = self._sequences[seq_id]
            is_ready = sequence.num_computed >= sequence.new.num_prompt_tokens
            if is_ready and seq_id not in result.sequence_ids:
                result.sequence_ids.append(seq_id)
                result.token_ids.append(0)
        return result


class AliasingExecutor(MemoryExecutor):
    """Keeps the very lists of tokens that a step has."""

    def _learn(self, step: StepInput) -> None:
        super()._learn(step)
        for new in step.added:
            self._sequences[new.id].tokens = new.tokens


class FirstGoneExecutor(MemoryExecutor):
    """Forgets what it keeps for a request when the first of its sequences is removed."""

    def _learn(self, step: StepInput) -> None:
        kept = self.__dict__.setdefault("kept", {})
        for seq_id in step.removed:
            gone = self._sequences.get(seq_id)
            if gone is not None and gone.new.index == 0:
                kept.pop(gone.new.request_id, None)
        super()._learn(step)
        for seq_id in step.sequence_ids:
            kept[self._sequences[seq_id].new.request_id] = [0] * 9


class OneTableExecutor(MemoryExecutor):
    """Returns candidates in the same table each time."""

    def collect(self, handle: Any, /) -> StepResult:
        result, table = super().collect(handle), self.__dict__.setdefault("table", {})
        table.clear()
        table.update(result.candidates)
        return replace(result, candidates=table)


class LastingExecutor(MemoryExecutor):
    """Has its sequences still when it is started again."""

    def start(self) -> Capacity:
        kept = dict(self._sequences)
        capacity = super().start()
        self._sequences.update(kept)
        return capacity


class HoldingExecutor(MemoryExecutor):
    """Holds its cache when it is closed."""

    def start(self) -> Capacity:
        self._held = bytearray(1 << 20)
        return super().start()


class OwnSeedExecutor(MemoryExecutor):
    """Draws by the seed of a request alone."""

    def _sample(self, new: NewSequence, tokens: Sequence[int], index: int) -> int:
        return super()._sample(new, [new.sampling.seed or 0, *tokens], index)


class SamplingIdsExecutor(MemoryExecutor):
    """Returns the very list of sequences that a step has."""

    def collect(self, handle: Any, /) -> StepResult:
        result = super().collect(handle)
        is_same = result.sequence_ids == handle.sequence_ids
        return replace(result, sequence_ids=handle.sequence_ids) if is_same else result


class LikelyExecutor(MemoryExecutor):
    """Reports the likeliest token before the one that it sampled."""

    def collect(self, handle: Any, /) -> StepResult:
        result = super().collect(handle)
        said = result.logprobs and [each and {0: 0.0, **each} for each in result.logprobs]
        return replace(result, logprobs=said)


class NamelessExecutor(MemoryExecutor):
    """Draws the same for all requests that have no seed."""

    def _sample(self, new: NewSequence, tokens: Sequence[int], index: int) -> int:
        seed = new.sampling.seed
        seed = self._settings.seed if seed is None else seed
        return super()._sample(new, [seed, *tokens], index)


class ArrayExecutor(MemoryExecutor):
    """Returns numbers of an array."""

    def collect(self, handle: Any, /) -> StepResult:
        result = super().collect(handle)
        return replace(result, token_ids=[*np.array(result.token_ids)])


class QueuedExecutor(MemoryExecutor):
    """Returns the result of the first step that is left, whichever is asked for."""

    def submit(self, step: StepInput, /) -> Any:
        self.__dict__.setdefault("queue", []).append(step)

    def collect(self, _: Any, /) -> StepResult:
        return super().collect(self.__dict__["queue"].pop(0))


class HostExecutor(MemoryExecutor):
    """Takes no blocks on the host for the default."""

    def start(self) -> Capacity:
        found = super().start()
        return replace(found, num_host_blocks=found.num_host_blocks or found.num_blocks)
