"""Tokenizers in GGUF files: what they were made from, and what cannot be made."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, pre_tokenizers

from integration.gguf_files import tokenizer_values, write_values
from paged_backends.text.gguf_tokenizer import PRE_TOKENIZERS
from paged_backends.text.tokenizer import CheckpointTokenizer
from paged_backends.text.tokenizer_loader import load_tokenizer
from paged_core.errors import CheckpointError
from unit.test_tokenizer import CORPUS, byte_level, save

pytestmark = pytest.mark.heavy


TEMPLATE = "{{ bos_token }}{% for message in messages %}{{ message['content'] }}{% endfor %}"
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
PIECES = ["▁", *"abdehilnort.,é", "▁t", "th", "he", "▁the", "▁th", "an", "and", "▁and", "in", "▁▁"]
TOKENS = ["<unk>", "<s>", "</s>", *BYTES, *PIECES]
SENTENCE_PIECES: Mapping[str, Any] = {
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.scores": [0.0] * 259 + [-float(rank) for rank in range(len(PIECES))],
    "tokenizer.ggml.token_type": [2, 3, 3, *[6] * 256, *[1] * len(PIECES)],
}
TEXTS = st.text("abthe dn.é\n▁€", max_size=30) | st.text(max_size=10)


def of(path: Path, values: Mapping[str, Any]) -> CheckpointTokenizer:
    tokenizer = load_tokenizer(str(write_values(path / "model.gguf", values)))
    assert tokenizer is not None
    return tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level tokenizer in the files of the tokenizers library."""
    path = tmp_path_factory.mktemp("byte_level")
    save(path, byte_level(), bos_token="<s>", eos_token="</s>", chat_template=TEMPLATE)
    return path


@pytest.fixture(scope="module")
def values(folder: Path) -> Mapping[str, Any]:
    return tokenizer_values(folder, "gpt-2")


@pytest.fixture(scope="module")
def pairs(
    folder: Path, values: Mapping[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> tuple[CheckpointTokenizer, CheckpointTokenizer]:
    """The tokenizer of the folder, and that of a file made from it."""
    source = load_tokenizer(str(folder))
    assert source is not None
    return source, of(tmp_path_factory.mktemp("file"), values)


@given(text=st.text() | st.sampled_from(CORPUS))
@settings(deadline=None, max_examples=25)
def test_byte_level_tokens_are_those_of_the_source(
    pairs: tuple[CheckpointTokenizer, CheckpointTokenizer], text: str
) -> None:
    source, made = pairs
    ids = source.encode(text, add_special_tokens=False)
    assert made.encode(text) == [0, *ids]
    assert made.encode(text, add_special_tokens=False) == ids
    assert made.decode(ids) == source.decode(ids) == text
    assert "".join(map(made.detokenizer([]).append, ([token] for token in ids))) == text


@pytest.mark.parametrize(
    ("rules", "text", "pieces"),
    [
        ("gpt-2", "I'll pay 1234 at  x\n", ["I", "'ll", " pay", " 1234", " at", " ", " x", "\n"]),
        ("smollm", "a 123b", ["a", " ", "1", "2", "3", "b"]),
        ("qwen2", "I'LL 12 (x)\n\n y", ["I", "'LL", " ", "1", "2", " (", "x", ")\n\n", " y"]),
        ("llama-bpe", "12345 $x", ["123", "45", " $", "x"]),
        ("tekken", "fooBar ABc 12/\n", ["foo", "Bar", " ABc", " ", "1", "2", "/\n"]),
        ("default", "a^b 1234", ["a", "^", "b", " ", "123", "4"]),
    ],
)
def test_how_a_text_is_split(rules: str, text: str, pieces: list[str]) -> None:
    split = PRE_TOKENIZERS[rules].make().pre_tokenize_str(text)
    assert [text[begin:end] for _, (begin, end) in split] == pieces


def test_rules_decide_what_the_file_leaves_open(values: Mapping[str, Any], tmp_path: Path) -> None:
    """A prompt begins with ``bos`` or not, and a whole piece needs merges or not."""
    piece = " quick"
    token = pre_tokenizers.ByteLevel(use_regex=False, add_prefix_space=False)
    spelled = token.pre_tokenize_str(piece)[0][0]
    less = {
        **values,
        "tokenizer.ggml.add_bos_token": None,
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.tokens": [*values["tokenizer.ggml.tokens"], spelled + "ab", "ab"],
        "tokenizer.ggml.token_type": [*values["tokenizer.ggml.token_type"], 1, 1],
    }
    whole = len(less["tokenizer.ggml.tokens"]) - 2
    assert of(tmp_path, {**less, "tokenizer.ggml.pre": "qwen2"}).encode(piece + "ab") != [whole]
    assert of(tmp_path, {**less, "tokenizer.ggml.pre": "llama-bpe"}).encode(piece + "ab") == [
        0,
        whole,
    ]


# ---------------------------------------------------------------------- pairs with scores


def merged(text: str) -> list[int]:
    """Merge the neighbours whose union has the highest score, the first of equal ones."""
    best = {piece: -rank for rank, piece in enumerate(PIECES)}
    symbols = list("▁" + text.replace(" ", "▁")) if text else []
    while True:
        unions = [one + other for one, other in pairwise(symbols)]
        found = [(best[union], -place) for place, union in enumerate(unions) if union in best]
        if not found:
            break
        place = -max(found)[1]
        symbols[place : place + 2] = [unions[place]]
    ids: list[int] = []
    for symbol in symbols:
        known = [TOKENS.index(symbol)] if symbol in best else None
        ids += known or [3 + byte for byte in symbol.encode()]
    return ids


@pytest.fixture(scope="module")
def sentence_pieces(tmp_path_factory: pytest.TempPathFactory) -> CheckpointTokenizer:
    return of(tmp_path_factory.mktemp("pieces"), SENTENCE_PIECES)


@given(text=TEXTS)
@settings(deadline=None, max_examples=100)
def test_the_pair_of_the_highest_score_is_merged_first(
    sentence_pieces: CheckpointTokenizer, text: str
) -> None:
    ids = sentence_pieces.encode(text)
    assert ids == [1, *merged(text)]
    assert sentence_pieces.decode(ids) == text.replace("▁", " ")


def test_tokens_that_users_defined_are_found_in_a_text(tmp_path: Path) -> None:
    values = {
        **SENTENCE_PIECES,
        "tokenizer.ggml.tokens": [*TOKENS, "[x]", "<end>"],
        "tokenizer.ggml.scores": [*SENTENCE_PIECES["tokenizer.ggml.scores"], 0.0, 0.0],
        "tokenizer.ggml.token_type": [*SENTENCE_PIECES["tokenizer.ggml.token_type"], 4, 3],
        "tokenizer.ggml.eos_token_id": len(TOKENS) + 1,
        "tokenizer.ggml.add_eos_token": True,
    }
    made = of(tmp_path, values)
    ids = made.encode("a[x]")
    assert ids[:1] + ids[-2:] == [1, len(TOKENS), len(TOKENS) + 1]
    assert made.decode(ids) == "a[x]"


def test_values_without_effect_are_accepted(
    sentence_pieces: CheckpointTokenizer, tmp_path: Path
) -> None:
    values = {
        "tokenizer.ggml.add_sep_token": False,
        "tokenizer.ggml.fim_pre_token_id": 3,
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.pre": "default",
    }
    made = of(tmp_path, {**SENTENCE_PIECES, **values})
    assert made.encode("the and") == sentence_pieces.encode("the and")


def test_tokens_may_have_the_same_text(tmp_path: Path) -> None:
    text = next(piece for piece in PIECES if len(piece) > 1 and "\u2581" not in piece)
    again = [*TOKENS, text]
    values = {
        **SENTENCE_PIECES,
        "tokenizer.ggml.tokens": again,
        "tokenizer.ggml.scores": [*SENTENCE_PIECES["tokenizer.ggml.scores"], 0.0],
        "tokenizer.ggml.token_type": [*SENTENCE_PIECES["tokenizer.ggml.token_type"], 1],
    }
    made, first = of(tmp_path, values), TOKENS.index(text)
    assert made.vocab_size == len(again)
    assert made.decode([first]) == made.decode([len(TOKENS)]) == text
    assert first not in made.encode(text)


# ---------------------------------------------------------------------- beside, and refused


def test_a_tokenizer_beside_the_file_takes_precedence(
    folder: Path, values: Mapping[str, Any], tmp_path: Path
) -> None:
    path = write_values(tmp_path / "model.gguf", {**values, "tokenizer.ggml.pre": "unheard of"})
    Tokenizer.from_file(str(folder / "tokenizer.json")).save(str(tmp_path / "tokenizer.json"))
    made = load_tokenizer(str(path))
    assert made is not None
    assert made.encode("the dog") == byte_level().encode("the dog").ids
    assert made.template.sources == {"default": TEMPLATE}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "other"}))
    made = load_tokenizer(str(path))
    assert made is not None
    assert made.template.sources == {"default": "other"}


def test_a_file_without_a_tokenizer(tmp_path: Path) -> None:
    assert load_tokenizer(str(write_values(tmp_path / "model.gguf", {}))) is None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"tokenizer.ggml.model": "t5"}, "its kind is 't5'"),
        ({"tokenizer.ggml.tokens": ["a" * 300, "b"]}, "more than 256 characters"),
        (
            {
                "tokenizer.ggml.tokens": ["a" * length for length in range(1, 12)],
                "tokenizer.ggml.scores": [0.0] * 11,
            },
            "11 tokens are merged in more than 4 ways each",
        ),
        ({"tokenizer.ggml.tokens": [1, 2]}, "tokens must be a list of strings"),
        ({"tokenizer.ggml.bos_token_id": 2}, "bos_token_id must be a whole number"),
        ({"tokenizer.ggml.model": "gpt2"}, "lacks tokenizer.ggml.merges"),
        ({"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.merges": ["x y"]}, "cannot be made"),
        ({"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "x"}, "rules called 'x'"),
        ({"tokenizer.ggml.scores": [0.0, float("nan")]}, "scores holds what is no number"),
        ({"tokenizer.ggml.normalizer.lowercase": True}, "normalizer.lowercase may change"),
        ({"tokenizer.ggml.precompiled_charsmap": [1, 2]}, "precompiled_charsmap may change"),
        ({"tokenizer.ggml.added_tokens": ["c"]}, "added_tokens may change"),
        ({"tokenizer.ggml.add_sep_token": True}, "add_sep_token may change"),
    ],
)
def test_what_cannot_be_made_is_refused(
    changes: Mapping[str, Any], reason: str, tmp_path: Path
) -> None:
    small = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": ["a", "b"],
        "tokenizer.ggml.scores": [0.0, -1.0],
    }
    path = write_values(tmp_path / "model.gguf", {**small, **changes})
    with pytest.raises(CheckpointError, match=reason) as caught:
        load_tokenizer(str(path))
    assert "\n" not in str(caught.value)
