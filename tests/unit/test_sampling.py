"""The sampler against loops that do the same, one row and one token at a time."""

from __future__ import annotations

import math
import pickle
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paged_backends.sampling import (
    RandomSample,
    Row,
    Sampler,
    kernel_random_sample,
    random_sample,
)
from paged_backends.sampling.random_sampling import top_logits
from paged_backends.sampling.row import uniform
from paged_core.sampling_params import LogitsProcessor, SamplingParams
from paged_core.step import TokenLogprobs
from unit.cpu_kernels import SETS, load
from unit.sampled_rows import EOS, VOCAB, kept_by_loops, make_logits, make_row, sampler_of

pytestmark = pytest.mark.heavy


ways: list[RandomSample] = [random_sample]
"""Ways to sample at random: the last one counts."""


@pytest.fixture(scope="module", autouse=True, params=["torch", *SETS])
def _every_way_to_sample(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run everything here with each of them."""
    name = request.param
    ways.append(random_sample if name == "torch" else kernel_random_sample(load(name).sample))
    yield
    ways.pop()


def make_sampler(vocab_size: int = VOCAB, seed: int = 0) -> Sampler:
    return sampler_of(ways[-1], vocab_size, seed)


# --- greedy ---------------------------------------------------------------------------------------


def test_greedy_takes_the_best_token_and_the_lowest_id_of_equals() -> None:
    logits = torch.zeros(3, VOCAB)
    logits[1, [9, 40]] = 2.0
    logits[2, 79] = 1.0
    rows = [make_row(SamplingParams()) for _ in range(3)]
    draws = make_sampler().sample(logits, rows)
    assert draws.token_ids == [0, 9, 79]
    assert draws.logprobs is None
    assert draws.failed == {}


def test_a_temperature_near_zero_is_greedy() -> None:
    logits = make_logits(1)
    draws = make_sampler().sample(logits, [make_row(SamplingParams(temperature=1e-300))])
    assert draws.token_ids == [int(logits.argmax())]


@pytest.mark.parametrize("params", [{"top_k": 1}, {"top_p": 1e-9}, {"min_p": 1.0}])
def test_filters_that_leave_one_token_are_greedy_even_among_equals(
    params: dict[str, float],
) -> None:
    logits = make_logits(5)
    logits[:, 30] = logits[:, 31] = 20.0
    if "min_p" in params:
        logits[:, 31] = 1.0
    rows = [make_row(SamplingParams(temperature=1.0, **params), index=i) for i in range(5)]
    assert make_sampler().sample(logits, rows).token_ids == [30] * 5


def test_no_rows() -> None:
    assert make_sampler().sample(torch.empty(0, VOCAB), []).token_ids == []


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="do not fit 1 rows"):
        make_sampler().sample(make_logits(2), [make_row(SamplingParams())])


# --- against the references -----------------------------------------------------------------------


DISTRIBUTIONS = {
    "free": SamplingParams(temperature=0.8),
    "min_p": SamplingParams(temperature=0.8, min_p=0.05),
    "top_k": SamplingParams(temperature=1.2, top_k=12),
    "top_p": SamplingParams(temperature=0.8, top_p=0.9),
    "flat_top_p": SamplingParams(temperature=9.0, top_p=0.7),
    "flat_low_top_p": SamplingParams(temperature=30.0, top_p=0.2),
    "flat_top_k": SamplingParams(temperature=9.0, top_k=150),
    "all": SamplingParams(temperature=1.5, top_k=30, top_p=0.9, min_p=0.01),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_frequencies_follow_the_distribution(name: str) -> None:
    """Pearson's chi-squared; the seeds are fixed, so this passes always or never."""
    vocab_size, num_draws = 1500, 2000
    params = DISTRIBUTIONS[name]
    logits = make_logits(1, 3, vocab_size)
    rows = [make_row(params, index=index) for index in range(num_draws)]
    draws = make_sampler(vocab_size).sample(logits.expand(num_draws, -1), rows)
    expected = kept_by_loops([float(value) for value in logits[0]], params)
    counts = Counter(draws.token_ids)
    assert set(counts) <= set(expected)
    likely = {token: share * num_draws for token, share in expected.items()}
    bins = [(counts[token], mean) for token, mean in likely.items() if mean >= 5]
    rest = sum(mean for mean in likely.values() if mean < 5)
    if rest >= 5:
        bins.append((num_draws - sum(count for count, _ in bins), rest))
    if len(bins) > 1:
        chi_squared = sum((count - mean) ** 2 / mean for count, mean in bins)
        freedom = len(bins) - 1
        assert chi_squared < freedom + 4 * math.sqrt(2 * freedom)
    # Where each token is rare, quarters of the vocabulary are not.
    for quarter in range(4):
        inside = [token for token in expected if token * 4 // vocab_size == quarter]
        mean = sum(likely[token] for token in inside)
        found = sum(counts[token] for token in inside)
        assert abs(found - mean) <= 4 * math.sqrt(mean) + 1


@pytest.mark.parametrize("scale", [0.01, 3.0, 40.0])
@pytest.mark.parametrize("vocab_size", [5, 64, 3001, 9000])
def test_all_ways_draw_the_same(scale: float, vocab_size: int) -> None:
    """A seed gives the same text with and without kernels."""
    count = 300 if vocab_size < 5000 else 60
    logits = (make_logits(count, 4, vocab_size) * scale).round(decimals=2)
    chance = Random(5)
    rows = [
        make_row(
            SamplingParams(
                temperature=chance.choice([0.4, 1.0, 3.0]),
                top_k=chance.choice([0, 2, 3, 40, 900]),
                top_p=chance.choice([1.0, 0.9, 0.4]),
                min_p=chance.choice([0.0, 0.0, 0.1]),
            ),
            index=index,
        )
        for index in range(count)
    ]
    found = make_sampler(vocab_size).sample(logits, rows).token_ids
    ways.append(random_sample)
    expected = make_sampler(vocab_size).sample(logits, rows).token_ids
    ways.pop()
    assert sum(a != b for a, b in zip(found, expected, strict=True)) <= 1  # rounding


def test_however_hot_it_is_what_is_ruled_out_is_never_drawn() -> None:
    logits = torch.full((200, VOCAB), -math.inf)
    logits[:, [5, 79]] = torch.tensor([3.0, 0.0])
    rows = [
        make_row(SamplingParams(temperature=(1e30, 1e300)[index % 2]), index=index)
        for index in range(200)
    ]
    assert set(make_sampler().sample(logits, rows).token_ids) == {5, 79}


AT_LEAST = SamplingParams(min_tokens=2, stop_token_ids=[20])
BAD = SamplingParams(bad_words_ids=[[5, 6, 7]])
PROCESSED: dict[str, tuple[dict[int, float], list[tuple[SamplingParams, list[int], int]]]] = {
    "penalties count the output and see the prompt": (
        {10: 4.0, 11: 3.5, 12: 3.0},
        [
            (SamplingParams(repetition_penalty=2.0), [11, 11], 12),
            (SamplingParams(presence_penalty=2.0), [11, 11], 10),
            (SamplingParams(presence_penalty=2.0), [10], 11),
            (SamplingParams(frequency_penalty=0.3), [10, 10], 11),
            (SamplingParams(frequency_penalty=0.6), [6], 10),
        ],
    ),
    "min_tokens rules out every end": (
        {EOS: 9.0, 20: 8.0, 21: 7.0},
        [(AT_LEAST, [1], 21), (AT_LEAST, [1, 1], EOS)],
    ),
    "a bad word is masked where its start was generated": (
        {7: 2.0, 9: 1.0},
        [
            (BAD, [5, 6], 9),
            (BAD, [4, 6], 7),
            (BAD, [6], 7),  # the prompt does not count
            (SamplingParams(), [5, 6], 7),
            (SamplingParams(bad_words_ids=[[7], [9]]), [], 0),
        ],
    ),
    "only allowed tokens are left": (
        {7: 3.0, 3: 2.0, 11: 1.0},
        [
            (SamplingParams(allowed_token_ids=[3, 11, VOCAB]), [], 3),
            (SamplingParams(allowed_token_ids=[11], temperature=1.0), [], 11),
            (SamplingParams(), [], 7),
        ],
    ),
}
"""Logits, zero elsewhere; parameters and output of each row, and the token to be taken."""


@pytest.mark.parametrize("name", PROCESSED)
def test_the_best_token_is_that_of_processed_logits(name: str) -> None:
    best, asked = PROCESSED[name]
    logits = torch.zeros(len(asked), VOCAB)
    logits[:, list(best)] = torch.tensor(list(best.values()))
    rows = [make_row(params, output, [10, 5]) for params, output, _ in asked]
    draws = make_sampler().sample(logits, rows)
    assert not draws.failed
    assert draws.token_ids == [token for *_, token in asked]


def test_a_row_kept_over_steps_sees_its_new_tokens() -> None:
    tokens = list(range(60)) * 3
    row = Row(SamplingParams(frequency_penalty=1.5), tokens, 5, 0, "r")
    sampler, logits = make_sampler(), make_logits(1)
    for _ in range(100):
        fresh = Row(row.sampling, list(tokens), 5, 0, "r")
        drawn = sampler.sample(logits, [row]).token_ids
        assert drawn == sampler.sample(logits, [fresh]).token_ids
        tokens += drawn


def test_placeholder_tokens_outside_the_vocabulary_are_not_penalised() -> None:
    logits = make_logits(2)
    row = make_row(SamplingParams(repetition_penalty=1.5), [-1, VOCAB, VOCAB + 3], [VOCAB])
    draws = make_sampler().sample(logits, [row, make_row(SamplingParams())])
    assert draws.token_ids == logits.argmax(-1).tolist()


# --- randomness -----------------------------------------------------------------------------------


def test_streams_differ_by_seed_request_index_and_position() -> None:
    params = SamplingParams(temperature=1.0)
    seeded = replace(params, seed=5)
    row = make_row(params)
    assert uniform(row, 0) == uniform(make_row(params), 0)
    others = [
        uniform(row, 0),
        uniform(row, 1),
        uniform(make_row(params, request_id="s"), 0),
        uniform(make_row(params, index=1), 0),
        uniform(make_row(params, [4]), 0),
        uniform(make_row(seeded), 0),
        uniform(make_row(replace(params, seed=6)), 0),
    ]
    assert len(set(others)) == len(others)
    assert all(0 <= number < 1 for number in others)
    assert uniform(make_row(seeded, request_id="x"), 1) == uniform(make_row(seeded), 0)


def test_the_numbers_are_the_same_in_every_process() -> None:
    assert uniform(make_row(SamplingParams(temperature=1.0)), 0) == 0.9628808779811342


# --- logits processors ----------------------------------------------------------------------------


def force(token: int) -> LogitsProcessor:
    def processor(output: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
        logits[:] = -math.inf
        logits[token] = 0.0
        return logits

    return processor


def test_processors_run_in_turn_on_their_row_alone() -> None:
    seen = []

    def note(output: list[int], logits: torch.Tensor) -> torch.Tensor:
        seen.append(list(output))
        output.append(99)  # its own copy
        return logits + torch.arange(VOCAB) * (logits > -math.inf)

    params = SamplingParams(logits_processors=[force(33), note])
    sampled = replace(params, temperature=1.0)
    logits = make_logits(3)
    rows = [make_row(params, [4, 5]), make_row(SamplingParams()), make_row(sampled)]
    draws = make_sampler().sample(logits, rows)
    assert draws.token_ids == [33, int(logits[1].argmax()), 33]
    assert seen == [[4, 5], []]
    assert rows[0].tokens == [1, 2, 3, 4, 5]


def test_a_failing_processor_fails_its_row_only() -> None:
    def explode(output: list[int], logits: torch.Tensor) -> torch.Tensor:
        logits.zero_()
        raise KeyError("no such word")

    def forget(output: list[int], logits: torch.Tensor) -> None:
        return None

    logits = make_logits(4)
    rows = [
        make_row(SamplingParams(logits_processors=[explode], temperature=1.0)),
        make_row(SamplingParams(logits_processors=[forget])),
        make_row(SamplingParams()),
        make_row(SamplingParams(logits_processors=[force(3)])),
    ]
    draws = make_sampler().sample(logits, rows)
    assert set(draws.failed) == {0, 1}
    assert "explode raised KeyError: 'no such word'" in draws.failed[0]
    assert "forget returned NoneType" in draws.failed[1]
    assert draws.token_ids[2:] == [int(logits[2].argmax()), 3]
    assert all(0 <= token < VOCAB for token in draws.token_ids)


# --- logits that nothing can be drawn from --------------------------------------------------------


@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(temperature=1.0, top_p=0.9)])
@pytest.mark.parametrize(
    ("value", "message"), [(math.nan, "hold NaN"), (math.inf, "hold infinity")]
)
def test_a_spoilt_row_fails_clearly(params: SamplingParams, value: float, message: str) -> None:
    logits = make_logits(3)
    logits[1, 4] = value
    rows = [make_row(replace(params, logprobs=2)) for _ in range(3)]
    draws = make_sampler().sample(logits, rows)
    assert set(draws.failed) == {1}
    assert message in draws.failed[1]


def test_a_row_without_any_token_left_fails() -> None:
    def forbid(output: list[int], logits: torch.Tensor) -> torch.Tensor:
        return torch.full_like(logits, -math.inf)

    params = SamplingParams(temperature=1.0, logits_processors=[forbid])
    draws = make_sampler().sample(make_logits(2), [make_row(SamplingParams()), make_row(params)])
    assert "every token is ruled out" in draws.failed[1]
    assert set(draws.failed) == {1}


def test_a_bias_outside_the_vocabulary_fails_its_row() -> None:
    params = SamplingParams(logit_bias={VOCAB: 1.0, 3: 100.0})
    draws = make_sampler().sample(make_logits(1), [make_row(params)])
    assert draws.failed == {0: f"logit_bias names token {VOCAB}, but token ids are 0 to 79"}


# --- masks ----------------------------------------------------------------------------------------


def test_tokens_outside_the_vocabulary_are_not_allowed() -> None:
    draws = make_sampler().sample(
        make_logits(1), [make_row(SamplingParams(allowed_token_ids=[VOCAB]))]
    )
    assert "every token is ruled out" in draws.failed[0]


@pytest.mark.parametrize("masks", [{"allowed_token_ids": [3, 11, 12]}, {"bad_words_ids": [[3]]}])
def test_beams_keep_to_the_masks(masks: dict[str, Any]) -> None:
    rows = [make_row(SamplingParams(beam_width=2, **masks)), make_row(SamplingParams(beam_width=2))]
    (found, free), _ = make_sampler().rank(make_logits(2), rows, [VOCAB, VOCAB])
    assert (set(found) == {3, 11, 12}) if "allowed_token_ids" in masks else (3 not in found)
    assert len(free) == VOCAB


# --- log-probabilities ----------------------------------------------------------------------------


def test_logprobs_are_the_models_own() -> None:
    logits = make_logits(3)
    params = SamplingParams(temperature=1.0, top_k=3, logit_bias={9: 100.0}, logprobs=4)
    rows = [make_row(params), make_row(SamplingParams()), make_row(SamplingParams(logprobs=0))]
    draws = make_sampler().sample(logits, rows)
    assert draws.token_ids[0] == 9
    assert draws.logprobs is not None
    expected = logits.log_softmax(-1)
    first, second, third = draws.logprobs
    assert first is not None and second is None and third is not None
    best = expected[0].topk(4).indices.tolist()
    assert list(first) == [9, *best]
    assert list(first.values()) == pytest.approx([float(expected[0, i]) for i in first], abs=1e-5)
    assert list(third) == [draws.token_ids[2]]


def test_logprobs_of_given_tokens_break_ties_by_id() -> None:
    logits = torch.zeros(2, 500)
    logits[0, [400, 300]] = 1.0
    entries = make_sampler(500).logprobs_of(logits, [7, 400], 4)
    assert list(entries[0]) == [7, 300, 400, 0, 1]
    assert list(entries[1]) == [400, 0, 1, 2, 3]
    assert entries[1][400] == pytest.approx(-math.log(500))
    for count in (9999, -1):
        assert len(make_sampler(500).logprobs_of(logits, [7, 400], count)[0]) == 500


def test_ranks_follow_the_order_of_the_best() -> None:
    logits = make_logits(20).round()  # with ties
    (whole,) = {tuple(e) for e in make_sampler().logprobs_of(logits[:1], [0], -1)}
    order = [int(i) for i in torch.sort(logits[0], descending=True, stable=True).indices]
    assert sorted(whole) == sorted(order)
    for token in order:
        (entry,) = make_sampler().logprobs_of(logits[:1], [token], 0)
        assert isinstance(entry, TokenLogprobs)
        assert entry.rank == order.index(token) + 1
    assert pickle.loads(pickle.dumps(entry)).rank == entry.rank


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.sampled_from([37, 200, 3000]))
def test_top_logits_agree_with_a_sort(seed: int, width: int, vocab_size: int) -> None:
    logits = make_logits(3, seed, vocab_size).round(decimals=1)
    values, ids = top_logits(logits, width)
    whole = torch.sort(logits, dim=-1, descending=True, stable=True)
    width = min(width, vocab_size)
    assert torch.equal(values, whole.values[:, :width])
    for row in range(3):
        certain = int((values[row] > values[row, -1]).sum())
        assert torch.equal(ids[row, :certain], whole.indices[row, :certain])
        assert torch.equal(logits[row, ids[row]], values[row])
