"""Any rows, drawn by every way to sample that this machine has, against loops that do the same."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paged_backends.sampling import RandomSample, Row, kernel_random_sample, random_sample
from unit.cpu_kernels import loadable
from unit.sampled_rows import (
    kept_by_loops,
    make_logits,
    processed_by_loops,
    rows_strategy,
    sampler_of,
)


@cache
def ways() -> dict[str, RandomSample]:
    """How samplers draw at random, by name."""
    kernels = {name: kernel_random_sample(found.sample) for name, found in loadable().items()}
    return {"torch": random_sample, **kernels}


def fresh(row: Row) -> Row:
    """The same row, of which no sampler has kept anything."""
    return Row(row.sampling, list(row.tokens), row.num_prompt_tokens, row.index, row.request_id)


def is_allowed(token: int, values: list[float], row: Row) -> bool:
    """Whether a row's parameters allow a token; its processed logits are ``values``."""
    if not row.sampled:
        return values[token] == pytest.approx(max(values), abs=1e-5)
    params = row.sampling
    top_p, min_p = min(1.0, params.top_p + 1e-5), params.min_p * (1 - 1e-5)
    kept = kept_by_loops(values, replace(params, top_p=top_p, min_p=min_p))
    # equals in float32, and which comes first is chance
    return token in kept or any(abs(values[one] - values[token]) < 1e-5 for one in kept)


@settings(max_examples=150, deadline=None)
@given(rows_strategy, st.integers(0, 2**32 - 1), st.booleans())
def test_a_draw_is_one_the_parameters_allow(rows: list[Row], seed: int, coarse: bool) -> None:
    logits = make_logits(len(rows), seed)
    if coarse:
        logits = logits.round()  # many ties
    processed = [processed_by_loops(*pair) for pair in zip(logits, rows, strict=True)]
    ruled_out = {place for place, values in enumerate(processed) if max(values) == -math.inf}
    before = logits.clone()
    for name, way in ways().items():
        draws = sampler_of(way).sample(logits, [fresh(row) for row in rows])
        assert torch.equal(logits, before), name
        assert draws.failed.keys() == ruled_out, name
        for place, token in enumerate(draws.token_ids):
            values, row = processed[place], rows[place]
            assert place in ruled_out or is_allowed(token, values, row), name


@settings(max_examples=100, deadline=None)
@given(rows_strategy, st.integers(0, 2**32 - 1), st.randoms(use_true_random=False))
def test_draws_do_not_depend_on_the_batch(rows: list[Row], seed: int, random: Random) -> None:
    logits = make_logits(len(rows), seed).round(decimals=1)
    order = list(range(len(rows)))
    random.shuffle(order)
    for name, way in ways().items():
        drawn = [fresh(row) for row in rows]
        sampler = sampler_of(way)
        together = sampler.sample(logits, drawn).token_ids
        shuffled = sampler.sample(logits[order], [drawn[place] for place in order]).token_ids
        assert shuffled == [together[place] for place in order], name
        for place, row in enumerate(rows):
            alone = sampler_of(way).sample(logits[place : place + 1], [fresh(row)]).token_ids
            assert alone == [together[place]], name
