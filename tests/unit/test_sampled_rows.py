"""Any rows, drawn by every way to sample that this machine has, against loops that do the same."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paged_backends.sampling import RandomSample, Row, kernel_random_sample, random_sample
from paged_core.sampling_params import SamplingParams
from unit.cpu_kernels import PLAIN_SETS, load
from unit.sampled_rows import (
    Widest,
    kept_by_loops,
    make_logits,
    make_row,
    processed_by_loops,
    rows_strategy,
    sampler_of,
)

pytestmark = pytest.mark.heavy


each_way = pytest.mark.parametrize("name", ["torch", *PLAIN_SETS])


def way(name: str) -> RandomSample:
    """Return the way to sample at random of this name."""
    return random_sample if name == "torch" else kernel_random_sample(load(name).sample)


def fresh(row: Row) -> Row:
    """The same row, of which no sampler has kept anything."""
    return Row(row.sampling, list(row.tokens), row.num_prompt_tokens, row.index, row.request_id)


def is_allowed(token: int, values: list[float], row: Row) -> bool:
    """Return True if a row's parameters allow a token; its processed logits are ``values``."""
    if not row.sampled:
        return values[token] == pytest.approx(max(values), abs=1e-5)
    params = row.sampling
    top_p, min_p = min(1.0, params.top_p + 1e-5), params.min_p * (1 - 1e-5)
    kept = kept_by_loops(values, replace(params, top_p=top_p, min_p=min_p))
    # equals in float32, and which comes first is chance
    return token in kept or any(abs(values[one] - values[token]) < 1e-5 for one in kept)


@each_way
@settings(max_examples=30, deadline=None)
@given(rows=rows_strategy, seed=st.integers(0, 2**32 - 1), num_top=st.integers(0, 3))
def test_logits_of_16_bits_are_those_numbers(
    name: str, rows: list[Row], seed: int, num_top: int
) -> None:
    """Tokens and log-probabilities, to the last bit; what is sampled ties often."""
    rows = [
        fresh(replace(row, sampling=replace(row.sampling, logprobs=num_top)))
        if place % 2
        else fresh(row)
        for place, row in enumerate(rows)
    ]
    for dtype in (torch.bfloat16, *[torch.float16][: name == "torch"]):
        logits = make_logits(len(rows), seed).to(dtype)
        wide, sampler = logits.float(), sampler_of(way(name))
        found = sampler.sample(logits, [fresh(row) for row in rows])
        assert found == sampler.sample(wide, [fresh(row) for row in rows])
        tokens, counts = found.token_ids, [1 + num_top] * len(rows)
        assert sampler.rank(logits, rows, counts) == sampler.rank(wide, rows, counts)
        of_tokens = sampler.logprobs_of(wide, tokens, num_top)
        assert sampler.logprobs_of(logits, tokens, num_top) == of_tokens


@each_way
@pytest.mark.parametrize("params", [{}, {"temperature": 1.0, "top_p": 0.9}, {"logprobs": 2}])
def test_logits_of_16_bits_become_float32_some_rows_at_a_time(
    name: str, params: dict[str, Any]
) -> None:
    logits = make_logits(40, vocab_size=60_000).bfloat16()
    rows = [make_row(SamplingParams(**params), request_id=str(place)) for place in range(40)]
    with Widest() as widest:
        found = sampler_of(way(name), vocab_size=60_000).sample(logits, rows)
    assert not found.failed
    assert widest.size <= 1 << 20


@each_way
@settings(max_examples=40, deadline=None)
@given(rows=rows_strategy, seed=st.integers(0, 2**32 - 1), coarse=st.booleans())
def test_a_draw_is_one_the_parameters_allow(
    name: str, rows: list[Row], seed: int, coarse: bool
) -> None:
    logits = make_logits(len(rows), seed)
    if coarse:
        logits = logits.round()  # many ties
    processed = [processed_by_loops(*pair) for pair in zip(logits, rows, strict=True)]
    ruled_out = {place for place, values in enumerate(processed) if max(values) == -math.inf}
    before = logits.clone()
    draws = sampler_of(way(name)).sample(logits, [fresh(row) for row in rows])
    assert torch.equal(logits, before)
    assert draws.failed.keys() == ruled_out
    for place, token in enumerate(draws.token_ids):
        values, row = processed[place], rows[place]
        assert place in ruled_out or is_allowed(token, values, row)


@each_way
@settings(max_examples=40, deadline=None)
@given(
    rows=rows_strategy,
    seed=st.integers(0, 2**32 - 1),
    random=st.randoms(use_true_random=False),
)
def test_draws_do_not_depend_on_the_batch(
    name: str, rows: list[Row], seed: int, random: Random
) -> None:
    logits = make_logits(len(rows), seed).round(decimals=1)
    order = list(range(len(rows)))
    random.shuffle(order)
    drawn = [fresh(row) for row in rows]
    sampler = sampler_of(way(name))
    together = sampler.sample(logits, drawn).token_ids
    shuffled = sampler.sample(logits[order], [drawn[place] for place in order]).token_ids
    assert shuffled == [together[place] for place in order]
    for place, row in enumerate(rows):
        alone = sampler_of(way(name)).sample(logits[place : place + 1], [fresh(row)]).token_ids
        assert alone == [together[place]]
