"""A prompt that is too long is refused by its beginning; one that is not is tokenised as it is."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from paged_core.errors import RequestError
from paged_core.text.front_end import encode_within
from unit.test_tokenizer import KINDS

TOKENIZERS = {name: make() for name, make in KINDS.items()}


def encode(tokenizer: Tokenizer, text: str) -> list[int]:
    ids: list[int] = tokenizer.encode(text).ids
    return ids


@pytest.mark.parametrize("text", ["a", " ", "the dog ", "é", "👍", "the quick brown fox "])
@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback", "metaspace"])
def test_the_work_for_a_prompt_that_is_too_long_does_not_grow_with_it(kind: str, text: str) -> None:
    read: list[int] = []

    def counted(part: str) -> list[int]:
        read.append(len(part))
        return encode(TOKENIZERS[kind], part)

    prompt = text * (1_000_000 // len(text))
    with pytest.raises(RequestError, match=r"has [0-9]+ characters.*the 100 tokens"):
        encode_within(counted, prompt, 100)
    assert sum(read) < 10_000


@pytest.mark.parametrize("kind", sorted(KINDS))
@settings(max_examples=40, deadline=None)
@given(
    text=st.text(st.sampled_from("ab the.é👍\u0301\n"), max_size=60),
    times=st.integers(1, 40),
    max_tokens=st.integers(1, 300),
)
def test_every_prompt_that_fits_is_tokenised(
    kind: str, text: str, times: int, max_tokens: int
) -> None:
    prompt = text * times
    expected = encode(TOKENIZERS[kind], prompt)
    if len(expected) <= max_tokens:
        assert encode_within(lambda part: encode(TOKENIZERS[kind], part), prompt, max_tokens) == (
            tuple(expected)
        )


def test_text_that_few_tokens_cover_is_read_whole() -> None:
    read: list[int] = []

    def one_token(part: str) -> list[int]:
        read.append(len(part))
        return [7]

    assert encode_within(one_token, "x" * 100_000, 10) == (7,)
    assert sum(read) < 250_000
