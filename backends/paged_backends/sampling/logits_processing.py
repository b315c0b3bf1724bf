"""Processing of logits before a token is sampled, in vLLM's order and by its definitions.

Logits processors, then ``logit_bias``, then the repetition, frequency and presence penalties; at
last masks, for all tokens but those that ``structured_outputs`` allows and ``allowed_token_ids``,
those that would complete one of ``bad_words_ids``, and below ``min_tokens`` those that would end a
sequence. Only rows that ask for any of it are processed.

Shapes: R rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from paged_backends.sampling.row import Row
from paged_core.errors import error_text
from paged_core.sampling_params import processor_name


def process_logits(
    logits: Tensor, rows: Sequence[Row], eos_token_ids: frozenset[int]
) -> dict[int, str]:
    """Process ``logits`` [R, V] float32, contiguous, in place.

    Returns:
        Why rows cannot be served as asked, by row.
    """
    failed = _run_processors(logits, rows)
    for place, problem in _apply_bias(logits, rows).items():
        failed.setdefault(place, problem)
    _apply_penalties(logits, rows)
    failed |= _keep_form(logits, rows)
    _keep_allowed(logits, rows)
    _mask(logits, rows, eos_token_ids)
    return failed


def _run_processors(logits: Tensor, rows: Sequence[Row]) -> dict[int, str]:
    """Run the users' processors, each on its own row, which stays as it is if one fails."""
    failed = {}
    for place, row in enumerate(rows):
        if row.sampling.logits_processors:
            problem = _run_row(logits[place], row)
            if problem is not None:
                failed[place] = problem
    return failed


def _run_row(logits: Tensor, row: Row) -> str | None:
    """Replace ``logits`` [V] by what the processors of ``row`` make of them, or say why not."""
    output, own = row.tokens[row.num_prompt_tokens :], logits.clone()
    for processor in row.sampling.logits_processors:
        name = f"logits processor {processor_name(processor)}"
        try:
            result = processor(output, own)
            found = _problem(result, logits)
            if found is not None:
                return (
                    f"{name} returned {found}; it must return the row of logits to use, a tensor "
                    f"of shape ({len(logits)},)"
                )
            own = own.new_empty(logits.shape).copy_(result)
        except Exception as error:  # noqa: BLE001 - the user's code: it fails its own request
            return f"{name} raised {error_text(error)}"
    logits.copy_(own)
    return None


def _problem(result: object, logits: Tensor) -> str | None:
    """Say what ``result`` is, if it cannot replace ``logits``."""
    if not isinstance(result, Tensor):
        return type(result).__name__
    if result.is_nested or result.layout is not torch.strided or result.is_meta:
        return "a tensor that is nested, sparse or of the meta device"
    if not result.is_floating_point():
        return f"{result.dtype} numbers"
    return None if result.shape == logits.shape else str(tuple(result.shape))


def _apply_bias(logits: Tensor, rows: Sequence[Row]) -> dict[int, str]:
    vocab_size = logits.shape[1]
    failed = {}
    places: list[int] = []
    biases: list[float] = []
    for place, row in enumerate(rows):
        for token_id, bias in row.sampling.logit_bias.items():
            if 0 <= token_id < vocab_size:
                places.append(place * vocab_size + token_id)
                biases.append(bias)
            else:
                failed[place] = (
                    f"logit_bias names token {token_id}, but token ids are 0 to {vocab_size - 1}"
                )
    if places:
        device = logits.device
        at = torch.tensor(places, device=device)
        added = torch.tensor(biases, dtype=logits.dtype, device=device)
        logits.view(-1).index_add_(0, at, added)
    return failed


def _apply_penalties(logits: Tensor, rows: Sequence[Row]) -> None:
    """Gather the logits of the tokens that occur, apply the penalties, and scatter them back."""
    vocab_size = logits.shape[1]
    places, counts, params = [], [], []
    for place, row in enumerate(rows):
        if row.token_counts is None:
            continue
        row.token_counts.update(row.tokens, row.num_prompt_tokens)
        ids = row.token_counts.ids
        known = (ids >= 0) & (ids < vocab_size)  # placeholders of other modalities are not
        places.append(ids[known] + place * vocab_size)
        counts.append(row.token_counts.counts[known])
        asked = row.sampling
        penalties = (asked.repetition_penalty, asked.frequency_penalty, asked.presence_penalty)
        params.append(np.tile(np.array(penalties, np.float32), (len(places[-1]), 1)))
    if not places:
        return
    device = logits.device
    at = torch.from_numpy(np.concatenate(places)).to(device)
    count = torch.from_numpy(np.concatenate(counts)).to(device)
    table = torch.from_numpy(np.concatenate(params)).to(device)
    repetition, frequency, presence = table.unbind(1)
    flat = logits.view(-1)
    values = flat[at]
    values = torch.where(values > 0, values / repetition, values * repetition)
    flat[at] = values - frequency * count - presence * (count > 0)


def _keep_form(logits: Tensor, rows: Sequence[Row]) -> dict[int, str]:
    """Set the logits of tokens that the forms of their rows do not allow to -inf."""
    failed: dict[int, str] = {}
    places, masks = [], []
    for place, row in enumerate(rows):
        if row.sampling.structured_outputs is None:
            continue
        if row.grammar is None or row.grammar.mask_W is None or row.grammar.problem is not None:
            problem = row.grammar.problem if row.grammar is not None else None
            failed[place] = problem or "its output cannot be held to structured_outputs here"
        else:
            places.append(place)
            masks.append(row.grammar.mask_W)
    if places:
        octets = torch.from_numpy(np.stack(masks).view(np.uint8)).to(logits.device)
        bits = torch.tensor([1 << bit for bit in range(8)], dtype=torch.uint8, device=logits.device)
        ruled_out = (octets[:, :, None] & bits == 0).flatten(1)[:, : logits.shape[1]]
        at = torch.tensor(places, device=logits.device)
        logits[at] = logits[at].masked_fill(ruled_out, float("-inf"))
    return failed


def _keep_allowed(logits: Tensor, rows: Sequence[Row]) -> None:
    """Set the logits of all tokens but those that a row allows to -inf."""
    for place, row in enumerate(rows):
        if row.allowed_ids is not None:
            known = row.allowed_ids[row.allowed_ids < logits.shape[1]]
            at = torch.from_numpy(known).to(logits.device)
            kept = logits[place, at]
            logits[place] = float("-inf")
            logits[place, at] = kept


def _mask(logits: Tensor, rows: Sequence[Row], eos_token_ids: frozenset[int]) -> None:
    """Set the logits of tokens that may not come next to -inf."""
    vocab_size = logits.shape[1]
    places = [
        place * vocab_size + token_id
        for place, row in enumerate(rows)
        for token_id in _forbidden(row, eos_token_ids)
        if 0 <= token_id < vocab_size
    ]
    if places:
        at = torch.tensor(places, device=logits.device)
        logits.view(-1).index_fill_(0, at, float("-inf"))


def _forbidden(row: Row, eos_token_ids: frozenset[int]) -> Iterator[int]:
    """Yield the tokens that would complete a bad word, or end the sequence too early."""
    for *start, last in row.sampling.bad_words_ids:
        begin = len(row.tokens) - len(start)
        if begin >= row.num_prompt_tokens and row.tokens[begin:] == start:
            yield last
    if row.below_min_tokens:
        yield from eos_token_ids.union(row.sampling.stop_token_ids)
