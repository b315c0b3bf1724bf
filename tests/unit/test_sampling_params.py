"""Sampling parameters out of range are refused, and the message says what the range is."""

from __future__ import annotations

from typing import Any

import pytest

from paged_core.errors import RequestError
from paged_core.sampling_params import SamplingParams

OUT_OF_RANGE: list[tuple[str, Any, str]] = [
    ("n", 0, "n must be at least 1, not 0"),
    ("temperature", -0.1, "temperature must not be negative, not -0.1"),
    ("temperature", float("nan"), "temperature must be a finite number, not nan"),
    ("top_k", -2, "top_k must be at least 1, or 0 to consider all, not -2"),
    ("top_p", 0.0, "top_p must be in (0, 1], not 0.0"),
    ("min_p", 1.1, "min_p must be in [0, 1], not 1.1"),
    ("presence_penalty", 2.5, "presence_penalty must be in [-2, 2], not 2.5"),
    ("frequency_penalty", -3, "frequency_penalty must be in [-2, 2], not -3"),
    ("repetition_penalty", 0, "repetition_penalty must be positive, not 0"),
    ("max_tokens", 0, "max_tokens must be at least 1, not 0"),
    ("min_tokens", -1, "min_tokens must not be negative, not -1"),
    ("min_tokens", 17, "min_tokens (17) is larger than max_tokens (16)"),
    ("seed", -2, "seed must not be negative, not -2"),
    ("logprobs", -2, "logprobs must be at least 0, or -1 for the whole vocabulary, not -2"),
    ("prompt_logprobs", -2, "prompt_logprobs must be at least 0, or -1 for the whole vocabulary"),
    ("stop", [""], "stop must not contain an empty string"),
    ("logit_bias", {3: float("inf")}, "logit_bias must hold finite numbers; to forbid a token"),
]


@pytest.mark.parametrize(("name", "value", "message"), OUT_OF_RANGE)
def test_a_value_out_of_range_is_refused(name: str, value: Any, message: str) -> None:
    with pytest.raises(RequestError) as refused:
        SamplingParams(**{name: value})
    assert str(refused.value).startswith(message)


@pytest.mark.parametrize("name", ["max_tokens", "seed", "logprobs", "prompt_logprobs"])
def test_none_is_in_every_range_that_is_optional(name: str) -> None:
    assert getattr(SamplingParams(**{name: None}), name) is None
