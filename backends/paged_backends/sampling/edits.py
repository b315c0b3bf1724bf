"""Changes to rows of logits before a token is drawn, in vLLM's order and by its definitions.

Logits processors, then ``logit_bias``, then the repetition, frequency and presence penalties; at
last the tokens that may not come yet are ruled out. Only rows that ask for a change come here.

Shapes: E rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from paged_backends.sampling.row import Row
from paged_core.sampling_params import LogitsProcessor


def edit(logits: Tensor, rows: Sequence[Row], eos_token_ids: frozenset[int]) -> dict[int, str]:
    """Change ``logits`` [E, V] float32, contiguous, in place.

    Returns:
        For each row that cannot be served as asked: its place and the reason.
    """
    failed = _process(logits, rows)
    for place, problem in _add_bias(logits, rows).items():
        failed.setdefault(place, problem)
    _penalise(logits, rows)
    _rule_out(logits, rows, eos_token_ids)
    return failed


def _process(logits: Tensor, rows: Sequence[Row]) -> dict[int, str]:
    """Call the users' processors, each on its own row; a row whose processor fails stays as is."""
    failed = {}
    for place, row in enumerate(rows):
        if not row.sampling.logits_processors:
            continue
        own = logits[place].clone()
        output = row.tokens[row.num_prompt_tokens :]
        for processor in row.sampling.logits_processors:
            try:
                result = processor(output, own)
            except Exception as error:  # noqa: BLE001 - the user's code: it fails its own request
                failed[place] = (
                    f"logits processor {_name(processor)} raised {type(error).__name__}: {error}"
                )
                break
            if not isinstance(result, Tensor) or result.shape != logits[place].shape:
                shape = tuple(result.shape) if isinstance(result, Tensor) else type(result).__name__
                failed[place] = (
                    f"logits processor {_name(processor)} returned {shape}; it must return the row "
                    f"of logits to use, a tensor of shape ({logits.shape[1]},)"
                )
                break
            own = result
        else:
            logits[place] = own
    return failed


def _name(processor: LogitsProcessor) -> str:
    return str(getattr(processor, "__qualname__", type(processor).__qualname__))


def _add_bias(logits: Tensor, rows: Sequence[Row]) -> dict[int, str]:
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


def _penalise(logits: Tensor, rows: Sequence[Row]) -> None:
    """Gather the logits of the tokens that occur, change these, and put them back."""
    vocab_size = logits.shape[1]
    places, counts, params = [], [], []
    for place, row in enumerate(rows):
        if row.tally is None:
            continue
        row.tally.update(row.tokens, row.num_prompt_tokens)
        ids = row.tally.ids
        known = (ids >= 0) & (ids < vocab_size)  # placeholders of other modalities are neither
        places.append(ids[known] + place * vocab_size)
        counts.append(row.tally.counts[known])
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


def _rule_out(logits: Tensor, rows: Sequence[Row], eos_token_ids: frozenset[int]) -> None:
    """Before ``min_tokens``, rule out every token that would end the sequence."""
    vocab_size = logits.shape[1]
    places = [
        place * vocab_size + token_id
        for place, row in enumerate(rows)
        if row.may_not_end
        for token_id in eos_token_ids.union(row.sampling.stop_token_ids)
        if 0 <= token_id < vocab_size
    ]
    if places:
        at = torch.tensor(places, device=logits.device)
        logits.view(-1).index_fill_(0, at, float("-inf"))
