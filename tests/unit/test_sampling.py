"""The sampler against loops that do the same, one row and one token at a time."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random

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
from unit.cpu_kernels import PLAIN_SETS, load
from unit.sampled_rows import VOCAB, kept_by_loops, make_logits, make_row, sampler_of

pytestmark = pytest.mark.heavy


ways: list[RandomSample] = [random_sample]
"""Ways to sample at random: the last one counts."""


@pytest.fixture(scope="module", autouse=True, params=["torch", *PLAIN_SETS])
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


# --- against the references -----------------------------------------------------------------------


DISTRIBUTIONS = {
    "min_p": SamplingParams(temperature=0.8, min_p=0.05),
    "top_k": SamplingParams(temperature=1.2, top_k=12),
    "top_p": SamplingParams(temperature=0.8, top_p=0.9),
    "flat_top_p": SamplingParams(temperature=9.0, top_p=0.7),
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


@pytest.mark.parametrize(("vocab_size", "scale"), [(5, 3.0), (64, 40.0), (3001, 0.01), (9000, 3.0)])
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


def test_a_row_kept_over_steps_sees_its_new_tokens() -> None:
    tokens = list(range(60)) * 3
    row = Row(SamplingParams(frequency_penalty=1.5), tokens, 5, 0, "r")
    sampler, logits = make_sampler(), make_logits(1)
    for _ in range(100):
        fresh = Row(row.sampling, list(tokens), 5, 0, "r")
        drawn = sampler.sample(logits, [row]).token_ids
        assert drawn == sampler.sample(logits, [fresh]).token_ids
        tokens += drawn


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
def test_a_spoilt_row_fails_clearly(params: SamplingParams) -> None:
    logits = make_logits(4)
    logits[1, 4] = math.nan
    logits[2, 4] = math.inf
    logits[3] = -math.inf
    draws = make_sampler().sample(logits, [make_row(replace(params, logprobs=2))] * 4)
    assert set(draws.failed) == {1, 2, 3}
    messages = ("hold NaN", "hold infinity", "every token is ruled out")
    for place, message in enumerate(messages, start=1):
        assert message in draws.failed[place]


def test_a_bias_outside_the_vocabulary_fails_its_row() -> None:
    params = SamplingParams(logit_bias={VOCAB: 1.0, 3: 100.0})
    draws = make_sampler().sample(make_logits(1), [make_row(params)])
    assert draws.failed == {0: f"logit_bias names token {VOCAB}, but token ids are 0 to 79"}


# --- masks ----------------------------------------------------------------------------------------


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
