"""Steps written by hand, which an executor runs without an engine."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import fields, replace
from functools import partial
from math import isclose
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
        request_id=f"r{number} \udce9",
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
    """A step with lists of its own: ``batch`` gives sequences and their numbers of tokens, applied
    after the changes."""
    return StepInput(
        number=number,
        sequence_ids=[SeqId(seq_id) for seq_id, _ in batch],
        num_tokens=[num_tokens for _, num_tokens in batch],
        added=[replace(new, tokens=[*new.tokens], blocks=[*new.blocks]) for new in added],
        removed=[SeqId(seq_id) for seq_id in removed],
        **{name: [*values] for name, values in changes.items()},
    )


def run(
    executor: Executor, number: int, batch: Sequence[tuple[int, int]], **more: Any
) -> StepResult:
    """Run one step; the arguments are those of :func:`step_input`."""
    step = step_input(number, batch, **more)
    return _collected(executor, executor.submit(step), step)[0]


def _collected(executor: Executor, handle: Any, step: StepInput) -> tuple[StepResult, StepResult]:
    """Collect a step, and empty its lists, as they may change from then on; return the result, and
    a copy from before that."""
    result = executor.collect(handle)
    try:
        json.dumps(_parts(result))
    except TypeError as error:
        raise AssertionError(f"a StepResult has plain numbers, and {error}: {result}") from None
    kept = deepcopy(result)
    for new in step.added:
        new.tokens.clear()
        new.blocks.clear()
    for each in fields(step)[1:]:
        getattr(step, each.name).clear()
    return result, kept


def run_all(
    executor: Executor, number: int, steps: Sequence[Mapping[str, Any]], *, ahead: bool
) -> list[StepResult]:
    """Run steps, each submitted before the one before it is collected, or after that.

    Raises:
        AssertionError: a result was changed by later steps.
    """
    made = [step_input(number + place, **step) for place, step in enumerate(steps)]
    handles, found = list[Any](), list[tuple[StepResult, StepResult]]()
    for place in range(len(made) + ahead):
        if place < len(made):
            handles.append(executor.submit(made[place]))
        if (late := place - ahead) >= 0:
            found.append(_collected(executor, handles[late], made[late]))
    for one, other in found:
        changed = [
            f"{each.name} {getattr(other, each.name)} became {getattr(one, each.name)}"
            for each in fields(one)
            if getattr(one, each.name) != getattr(other, each.name)
        ]
        assert not changed, (
            f"of a StepResult {', and '.join(changed)} later on: each has its own lists, which no "
            "later step changes, nor what becomes of the lists of its step"
        )
    return [one for one, _ in found]


def alike(one: Any, other: Any) -> bool:
    """Return whether two results, or parts of them, are the same but for rounding and seconds."""
    if isinstance(one, StepResult):
        return all(alike(*both) for both in zip(_parts(one), _parts(other), strict=True))
    if isinstance(one, dict) and isinstance(other, dict):
        return alike([*one.items()], [*other.items()])
    if isinstance(one, list | tuple):
        same = isinstance(other, list | tuple) and len(one) == len(other)
        return same and all(map(alike, one, other))
    return isclose(one, other, abs_tol=1e-3) if isinstance(one, float) else bool(one == other)


def _parts(result: StepResult) -> list[Any]:
    return [getattr(result, each.name) for each in fields(result) if each.name != "seconds"]


def second_token(_tokens: Sequence[int], logits: Any, /) -> Any:
    """Process logits, so that token 2 has the highest."""
    chosen = logits.clone()
    chosen[:], chosen[2] = -1.0, 0.0
    return chosen


def kinds() -> list[NewSequence]:
    """Return sequences that ask for all that an executor can return."""
    more: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({}, {}),
        ({"logprobs": 1}, {}),
        ({"temperature": 50.0, "seed": 3, "best_of": 1}, {}),
        ({"beam_width": 2}, {"num_candidates": 4}),
        ({"temperature": 50.0, "n": 3, "logprobs": 9}, {"fan_out": 3}),
        ({"beam_width": 4, "length_penalty": 0.5}, {"num_candidates": 8}),
    ]
    return [
        replace(
            new_sequence(number, 4 + number),
            sampling=SamplingParams(max_tokens=8, ignore_eos=True, **asked),
            **fields,
        )
        for number, (asked, fields) in enumerate(more)
    ]


def steps_again(executor: Executor) -> Callable[[int], object]:
    """Return what runs steps of a few sequences of a number, in 7 blocks of 4 tokens.

    A sequence fans out into two that end in steps of their own, in turns the first one first, the
    other one beside the next number's; a third one is ranked, or removed before it is computed.
    """
    late: list[SeqId] = []

    def use(number: int) -> None:
        first, turn = 1_000_000 + 3 * number, number % 2
        ids = [SeqId(first + place) for place in range(3)]
        shared, *own = (BlockId(3 * turn + place) for place in range(3))
        new = NewSequence(
            id=ids[0],
            request_id=f"step {number}",
            tokens=[1 + number // 3**place % 3 for place in range(4)],
            num_prompt_tokens=4,
            num_computed=0,
            blocks=[shared, own[0]],
            sampling=SamplingParams(
                n=2, temperature=1.0, seed=number, logprobs=1, ignore_eos=True, max_tokens=8
            ),
            fan_out=2,
        )
        beam = replace(
            new,
            id=ids[2],
            request_id=f"beam {number}",
            blocks=[BlockId(6)],
            sampling=SamplingParams(beam_width=2, max_tokens=8),
            fan_out=1,
            num_candidates=4,
        )
        steps = partial(run, executor)
        batch = [(ids[0], 4), (ids[2], 3), *((each, 1) for each in late)]
        tokens = steps(3 * number, batch, added=[new, beam]).token_ids
        other = replace(
            new,
            id=ids[1],
            tokens=[*new.tokens, tokens[1]],
            num_computed=4,
            blocks=[shared, own[1]],
            index=1,
            fan_out=1,
        )
        batch = [(ids[0], 1), (ids[1], 1), *[(ids[2], 1)] * turn]
        steps(3 * number + 1, batch, added=[other], removed=late)
        late[:] = [ids[1 - turn]]
        steps(3 * number + 2, [(late[0], 1)], removed=[ids[turn], ids[2]][:: 1 - 2 * turn])

    return use


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
WITH_HOST: Mapping[str, Any] = {"num_blocks": 32, "num_host_blocks": 4, "preemption": "swap"}
