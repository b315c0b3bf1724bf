"""Component ``memory``: no model; the cache holds token ids, and the next token is a function of
the tokens that are read back from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast
from zlib import crc32

from paged_backends.executors.settings import MemorySettings
from paged_core.engine.contexts import ExecutorContext
from paged_core.errors import SettingsError
from paged_core.ids import BlockId, SeqId
from paged_core.interfaces.executor import Capacity, Executor
from paged_core.step import NewSequence, StepInput, StepResult

Sample = Callable[[NewSequence, Sequence[int], int], int]
"""``sample(sequence, tokens, index)``: the token of the ``index``-th sequence of the request that
follows ``tokens``, which were read back through the block table."""

EMPTY = -1
"""The content of a slot that was never written."""

MAX_BLOCKS = 4_000_000
"""Blocks that a block allocator keeps account of without a model, at most."""

_NO_LOGITS = "logits_processors need logits, which the executor 'memory' has none of"
_LOWEST = -8.0
"""No log-probability is lower."""


class CorruptCacheError(AssertionError):
    """A sequence's blocks do not hold its tokens: a component corrupted a block table."""


class _Blocks(dict[BlockId, list[int]]):
    """The tokens of each block that was used, as far as it was written."""

    def __init__(self, num_blocks: int) -> None:
        self._num_blocks = num_blocks

    def __missing__(self, block: BlockId) -> list[int]:
        if not 0 <= block < self._num_blocks:
            raise CorruptCacheError(f"there is no block {block}: there are {self._num_blocks}")
        self[block] = []
        return self[block]


class _Sequence:
    """The executor's copy of a sequence."""

    def __init__(self, new: NewSequence) -> None:
        self.new = new
        self.tokens = list(new.tokens)
        self.blocks = list(new.blocks)
        self.num_computed = new.num_computed
        self.fan_out = new.fan_out


class MemoryExecutor(Executor):
    """Runs steps over blocks of token ids, exactly as a real executor runs them over tensors.

    Every sequence is read back through its block table before it samples, so a block that is lost,
    shared wrongly or never filled is found at once. Any token id is served, and none ends a
    sequence.

    Raises:
        CorruptCacheError: from ``collect``, if a sequence's blocks do not hold its tokens.
    """

    def __init__(self, options: MemorySettings, context: ExecutorContext, /) -> None:
        self._options = options
        self._settings = context.settings
        self._needs_host_blocks = context.needs_host_blocks
        self._sequences: dict[SeqId, _Sequence] = {}
        self.sample: Sample = self._sample
        self._device = _Blocks(0)
        self._host = _Blocks(0)

    def start(self) -> Capacity:
        self._sequences.clear()  # it may have been lost
        settings = self._settings
        max_model_len = settings.max_model_len or 2048
        num_blocks = settings.num_blocks
        if num_blocks is None:
            num_blocks = max(256, 4 * -(-max_model_len // settings.block_size))
        num_host_blocks = settings.num_host_blocks
        if num_host_blocks is None:
            num_host_blocks = num_blocks if self._needs_host_blocks else 0
        if num_blocks + num_host_blocks > MAX_BLOCKS:
            raise SettingsError(
                f"num_blocks={num_blocks} and num_host_blocks={num_host_blocks}: without a model "
                f"there are {MAX_BLOCKS:,} blocks at most; lower one of them"
            )
        self._device, self._host = _Blocks(num_blocks), _Blocks(num_host_blocks)
        return Capacity(
            num_blocks=num_blocks, num_host_blocks=num_host_blocks, max_model_len=max_model_len
        )

    def submit(self, step: StepInput, /) -> Any:
        return step

    def collect(self, handle: Any, /) -> StepResult:
        step = cast("StepInput", handle)
        self._move_blocks(step)
        self._learn(step)
        batch = [self._sequences[seq_id] for seq_id in step.sequence_ids]
        asked = any(sequence.new.sampling.needed_logprobs is not None for sequence in batch)
        result = StepResult(logprobs=[] if asked else None)
        for sequence, num_tokens in zip(batch, step.num_tokens, strict=True):
            self._tell_of_prompt(sequence, num_tokens, result)
            self._write(sequence, num_tokens)
        for sequence in batch:
            self._check(sequence)
            if sequence.num_computed < len(sequence.tokens):
                continue
            if sequence.new.sampling.logits_processors:
                result.failed[sequence.new.id] = _NO_LOGITS
            elif sequence.new.num_candidates:
                found = self.rank(sequence.tokens, sequence.new.num_candidates)
                result.candidates[sequence.new.id] = found
            else:
                self._extend(sequence, result)
        return result

    def rank(self, tokens: Sequence[int], count: int) -> dict[int, float]:
        """Return log-probabilities of the best continuations by token id, best first."""
        first, size = crc32(repr(("rank", tokens)).encode()), self._options.vocab_size
        ranked = [(first + place) % size for place in range(min(count, size))]
        return {
            token: -0.5 * (place + self.logprob(tokens, token) / _LOWEST)
            for place, token in enumerate(ranked)
        }

    def logprob(self, tokens: Sequence[int], token: int) -> float:
        """Return the log-probability of ``token`` after ``tokens``: arbitrary, but repeatable."""
        return _LOWEST * (crc32(repr(("logprob", tokens, token)).encode()) % 1000) / 1000

    def _extend(self, sequence: _Sequence, result: StepResult) -> None:
        """Sample a token for a sequence, or several where it fans out."""
        new, tokens = sequence.new, sequence.tokens
        sampled = [
            self.sample(new, tokens, index)
            for index in range(new.index, new.index + sequence.fan_out)
        ]
        if result.logprobs is not None:
            wanted = new.sampling.needed_logprobs is not None
            result.logprobs.extend(
                {token: self.logprob(tokens, token)} if wanted else None for token in sampled
            )
        result.sequence_ids.extend([new.id] * len(sampled))
        result.token_ids.extend(sampled)
        tokens.append(sampled[0])
        sequence.fan_out = 1

    def _tell_of_prompt(self, sequence: _Sequence, num_tokens: int, result: StepResult) -> None:
        """Return log-probabilities of prompt tokens that follow those of a chunk, if it asks."""
        new, tokens = sequence.new, sequence.tokens
        if new.sampling.prompt_logprobs is None:
            return
        first = sequence.num_computed + 1
        places = range(first, min(first + num_tokens, new.num_prompt_tokens))
        result.prompt_logprobs[new.id] = [
            {tokens[place]: self.logprob(tokens[:place], tokens[place])} for place in places
        ]

    def close(self) -> None:
        self._sequences.clear()
        self._device, self._host = _Blocks(0), _Blocks(0)

    def _move_blocks(self, step: StepInput) -> None:
        device, host = self._device, self._host
        for source, target in zip(step.swap_out_sources, step.swap_out_targets, strict=True):
            host[target][:] = device[source]
        for source, target in zip(step.swap_in_sources, step.swap_in_targets, strict=True):
            device[target][:] = host[source]
        read = [list(device[source]) for source in step.copy_sources]
        for content, target in zip(read, step.copy_targets, strict=True):
            device[target][:] = content

    def _learn(self, step: StepInput) -> None:
        for seq_id in step.removed:
            self._sequences.pop(seq_id, None)
        for new in step.added:
            self._sequences[new.id] = _Sequence(new)
        for seq_id, index, block in zip(
            step.edit_ids, step.edit_indices, step.edit_blocks, strict=True
        ):
            blocks = self._sequences[seq_id].blocks
            if index == len(blocks):
                blocks.append(block)
            else:
                blocks[index] = block

    def _write(self, sequence: _Sequence, num_tokens: int) -> None:
        size, tokens = self._settings.block_size, sequence.tokens
        start, end = sequence.num_computed, sequence.num_computed + num_tokens
        while start < end:
            block, place = self._device[sequence.blocks[start // size]], start % size
            stop = min(end, start - place + size)
            block += [EMPTY] * (place - len(block))
            block[place : place + stop - start] = tokens[start:stop]
            start = stop
        sequence.num_computed = end

    def _check(self, sequence: _Sequence) -> None:
        held = self._read(sequence.blocks, sequence.num_computed)
        if held != sequence.tokens[: sequence.num_computed]:
            wrong = next(i for i, token in enumerate(held) if token != sequence.tokens[i])
            raise CorruptCacheError(
                f"sequence {sequence.new.id} of request {sequence.new.request_id!r}: token {wrong} "
                f"is {sequence.tokens[wrong]}, but its block holds {held[wrong]}"
            )

    def _read(self, blocks: Sequence[BlockId], num_tokens: int) -> list[int]:
        size, content = self._settings.block_size, list[int]()
        for start in range(0, num_tokens, size):
            content += self._device[blocks[start // size]]
            content += [EMPTY] * (min(start + size, num_tokens) - len(content))
        return content[:num_tokens]

    def _sample(self, new: NewSequence, tokens: Sequence[int], index: int) -> int:
        """Return a token that depends on all tokens before it, and if sampled on the index."""
        seed = 0 if new.sampling.temperature == 0 else index + 1
        return crc32(repr((seed, tokens)).encode()) % self._options.vocab_size
