"""Steps written by hand, which an executor runs without an engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from paged_core.ids import BlockId, SeqId
from paged_core.interfaces.executor import Executor
from paged_core.sampling_params import SamplingParams
from paged_core.step import NewSequence, StepInput, StepResult


def new_sequence(number: int, length: int, first_block: int | None = None) -> NewSequence:
    """A greedy request of small token ids, in blocks of its own that hold 16 tokens or more."""
    first = 4 * number if first_block is None else first_block
    return NewSequence(
        id=SeqId(number),
        request_id=f"r{number}",
        tokens=[1 + (number + place) % 3 for place in range(length)],
        num_prompt_tokens=length,
        num_computed=0,
        blocks=[BlockId(first + place) for place in range(4)],
        sampling=SamplingParams(max_tokens=8, ignore_eos=True),
    )


def step_input(
    number: int,
    batch: Sequence[tuple[int, int]],
    *,
    added: Sequence[NewSequence] = (),
    removed: Sequence[int] = (),
    **changes: Any,
) -> StepInput:
    """A step: ``batch`` gives sequences and their numbers of tokens, applied after the changes."""
    return StepInput(
        number=number,
        sequence_ids=[SeqId(seq_id) for seq_id, _ in batch],
        num_tokens=[num_tokens for _, num_tokens in batch],
        added=[replace(new, tokens=[*new.tokens], blocks=[*new.blocks]) for new in added],
        removed=[SeqId(seq_id) for seq_id in removed],
        **changes,
    )


def run(
    executor: Executor, number: int, batch: Sequence[tuple[int, int]], **more: Any
) -> StepResult:
    """Run one step; the arguments are those of :func:`step_input`."""
    return executor.collect(executor.submit(step_input(number, batch, **more)))


def moved(how: str, blocks: Mapping[int, int]) -> dict[str, list[BlockId]]:
    """Blocks of a step that are swapped out or in, or copied, by their sources."""
    return {
        f"{how}_sources": [BlockId(block) for block in blocks],
        f"{how}_targets": [BlockId(block) for block in blocks.values()],
    }


def edited(*edits: tuple[int, int, int]) -> dict[str, list[Any]]:
    """Edits of block tables in a step: sequence, index and block."""
    ids, indices, blocks = zip(*edits, strict=True)
    return {"edit_ids": list(ids), "edit_indices": list(indices), "edit_blocks": list(blocks)}


WHOLE: Mapping[str, Any] = {"batch": [(0, 5)], "added": [new_sequence(0, 5)]}
FIRST: Mapping[str, Any] = {"batch": [(0, 3)], "added": [new_sequence(0, 5)]}
LAST: Mapping[str, Any] = {"batch": [(0, 2)]}
"""Steps that compute a sequence at once, and in two chunks."""
WITH_HOST: Mapping[str, Any] = {"num_blocks": 32, "num_host_blocks": 4, "preemption": "swap"}
