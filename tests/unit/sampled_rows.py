"""Rows to sample, at random, and loops that say what may be drawn from them."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import torch
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from paged_backends.sampling import RandomSample, Row, Sampler
from paged_core.sampling_params import SamplingParams

VOCAB = 80
EOS = 7


class Widest(TorchDispatchMode):
    """Sees what is computed inside: the numbers of the largest float32 tensor."""

    size = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for one in made if isinstance(made, tuple | list) else [made]:
            if isinstance(one, torch.Tensor) and one.dtype is torch.float32:
                self.size = max(self.size, one.numel())
        return made


def sampler_of(way: RandomSample, vocab_size: int = VOCAB, seed: int = 0) -> Sampler:
    return Sampler(
        vocab_size=vocab_size,
        seed=seed,
        eos_token_ids=frozenset({EOS}),
        device="cpu",
        random_sample=way,
    )


def make_row(
    params: SamplingParams,
    output: list[int] | None = None,
    prompt: list[int] | None = None,
    index: int = 0,
    request_id: str = "r",
) -> Row:
    prompt = [1, 2, 3] if prompt is None else prompt
    return Row(params, prompt + (output or []), len(prompt), index, request_id)


def make_logits(num_rows: int, seed: int = 0, vocab_size: int = VOCAB) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num_rows, vocab_size, generator=generator) * 3


def processed_by_loops(logits: torch.Tensor, row: Row) -> list[float]:
    """Bias, penalties and the minimum length, by vLLM's definitions."""
    params = row.sampling
    values = [float(value) for value in logits]
    output = row.tokens[row.num_prompt_tokens :]
    for token, bias in params.logit_bias.items():
        values[token] += bias
    for token in set(row.tokens):
        if values[token] > 0:
            values[token] /= params.repetition_penalty
        else:
            values[token] *= params.repetition_penalty
    for token, count in Counter(output).items():
        values[token] -= params.frequency_penalty * count + params.presence_penalty
    for token in range(VOCAB):
        if params.allowed_token_ids is not None and token not in params.allowed_token_ids:
            values[token] = -math.inf
        if any(tuple([*output, token][-len(bad) :]) == bad for bad in params.bad_words_ids):
            values[token] = -math.inf
    if len(output) < params.min_tokens:
        for token in {EOS, *params.stop_token_ids}:
            values[token] = -math.inf
    return values


def kept_by_loops(values: list[float], params: SamplingParams) -> dict[int, float]:
    """The tokens that pass the filters, with their probabilities."""
    peak = max(values)
    weights = {
        token: math.exp((value - peak) / params.temperature) for token, value in enumerate(values)
    }
    ranked = sorted(weights, key=lambda token: (-values[token], token))
    ranked = [token for token in ranked if weights[token] > 0]
    ranked = [token for token in ranked if weights[token] >= params.min_p]
    if params.top_k:
        ranked = ranked[: params.top_k]
    total = sum(weights[token] for token in ranked)
    kept, reached = [], 0.0
    for token in ranked:
        if reached >= params.top_p * total:
            break
        kept.append(token)
        reached += weights[token]
    return {token: weights[token] / reached for token in kept}


params_strategy = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.5]),
    top_k=st.sampled_from([0, 1, 2, 5, 70, 1000]),
    top_p=st.sampled_from([1.0, 0.95, 0.5, 0.1]),
    min_p=st.sampled_from([0.0, 0.02, 0.3]),
    presence_penalty=st.sampled_from([0.0, 0.7, -1.0]),
    frequency_penalty=st.sampled_from([0.0, 0.4]),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.8]),
    logit_bias=st.dictionaries(st.integers(0, VOCAB - 1), st.floats(-5, 5), max_size=3),
    allowed_token_ids=st.none() | st.lists(st.integers(0, VOCAB - 1), min_size=9),
    bad_words_ids=st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=3), max_size=3),
    min_tokens=st.integers(0, 3),
    stop_token_ids=st.lists(st.integers(0, VOCAB - 1), max_size=2),
    seed=st.none() | st.integers(-1, 2**63),
    max_tokens=st.none(),
)
rows_strategy = st.lists(
    st.tuples(
        params_strategy,
        st.lists(st.integers(0, VOCAB - 1), max_size=8),
        st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=8),
        st.integers(0, 3),
        st.text(max_size=3),
    ).map(lambda fields: make_row(*fields)),
    min_size=1,
    max_size=6,
)
