"""Log-probabilities belong to tokens, whatever their texts are; the texts join to the answer."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers

from paged_backends.text.tokenizer import CheckpointTokenizer
from paged_backends.text.tokenizer_loader import load_tokenizer
from paged_core.text.outputs import Logprob
from paged_plugins.server.openai.logprobs import LogprobFormat
from paged_plugins.server.service import TokenPieces
from server.told import make_told

SAID = "the the é€\U0001f600the  \u4e16"


def sentencepiece(folder: Path) -> Path:
    """Write a tokenizer that puts spaces before words, and has a token for each byte."""
    words = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", "\u2581the", "the"]
    words += ["t", "h", "e", "th", "\u2581th", *'{}[]":,.()0123456789ABCabc\n', "\u2581\u2581"]
    merges = [("t", "h"), ("th", "e"), ("\u2581", "th"), ("\u2581th", "e"), ("\u2581", "\u2581")]
    vocab = {word: place for place, word in enumerate(dict.fromkeys(words))}
    made = Tokenizer(models.BPE(vocab, merges, byte_fallback=True, unk_token="<unk>"))
    made.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    parts = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    made.decoder = decoders.Sequence([*parts, decoders.Strip(" ", 1, 0)])
    made.add_special_tokens(["<s>"])
    made.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="module", params=[make_told, sentencepiece], ids=["bytes", "sentencepiece"])
def tokenizer(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> CheckpointTokenizer:
    found = load_tokenizer(str(request.param(tmp_path_factory.mktemp("tokenizer"))))
    assert found is not None
    return found


def entries(tokenizer: CheckpointTokenizer, ids: list[int]) -> Iterator[dict[int, Logprob]]:
    """For each token all others, which have the better values if they come first."""
    assert tokenizer.vocab_size is not None
    for chosen in ids:
        others = (each for each in range(tokenizer.vocab_size) if each != chosen)
        yield {each: Logprob(-1.0 - each) for each in (chosen, *others)}


def answer(tokenizer: CheckpointTokenizer, ids: list[int]) -> str:
    prompt = tokenizer.encode("the")
    detokenizer = tokenizer.detokenizer(prompt)
    return detokenizer.append(ids) + detokenizer.flush()


def name_of(data: bytes) -> str:
    """Return the name of a token in a chat."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


@pytest.mark.parametrize("cut", [0, 1, 2, 3, 4], ids=str)
def test_texts_of_tokens_join_to_the_text_and_no_value_is_another_s(
    tokenizer: CheckpointTokenizer, cut: int
) -> None:
    ids = tokenizer.encode(SAID, add_special_tokens=False)
    ids = ids[: len(ids) - cut]
    text, all_entries = answer(tokenizer, ids), list(entries(tokenizer, ids))
    text = re.sub("\ufffd+", "\ufffd", text)  # one for each byte, where it is cut in a character
    for at in (0, 5):  # in one delta, or in two
        found: list[Any] = []
        chats: list[Any] = []
        made = LogprobFormat(TokenPieces(tokenizer), -1, as_ids=False)
        chat = LogprobFormat(TokenPieces(tokenizer), -1, as_ids=False)
        for part, ends in ((slice(0, at), False), (slice(at, None), True)):
            found.append(made.completion(0, all_entries[part], ids[part], "", ends=ends))
            chats += chat.chat(all_entries[part]).content
        tokens = [token for each in found for token in each.tokens]
        assert "".join(tokens) == text
        for each in (named for token in chats for named in (token, *token.top_logprobs)):
            data = bytes(each.bytes)
            assert each.token == name_of(data) or each.token.startswith("token_id:"), each
        for each in chats:
            assert len({named.token for named in each.top_logprobs}) == tokenizer.vocab_size
            assert each.token in {named.token for named in each.top_logprobs}
        assert bytes(byte for each in chats for byte in each.bytes).decode(errors="replace") == text
        offsets = [offset for each in found for offset in each.text_offset]
        values = [value for each in found for value in each.token_logprobs]
        tops = [top for each in found for top in each.top_logprobs]
        assert values == [-1.0 - each for each in ids] == [each.logprob for each in chats]
        for token, offset, value, top in zip(tokens, offsets, values, tops, strict=True):
            assert text.startswith(token, offset)
            assert top[token] == value
            assert sorted(top.values()) == sorted(-1.0 - n for n in range(tokenizer.vocab_size))


def test_tokens_that_have_one_text_have_names_of_their_own(tokenizer: CheckpointTokenizer) -> None:
    (first, *_) = tokenizer.encode("\u20ac", add_special_tokens=False)[-3:]
    entry = {first: Logprob(-1.0), first + 1: Logprob(-2.0)}
    made = LogprobFormat(TokenPieces(tokenizer), 2, as_ids=False)
    (top,) = made.completion(0, [entry], [first], "", ends=False).top_logprobs
    assert top == {"": -1.0, "bytes:\\xe3": -2.0}
    (named,) = made.chat([entry]).content
    assert [each.token for each in named.top_logprobs] == ["bytes:\\xe2", "bytes:\\xe3"]
    assert named.token == "bytes:\\xe2"
    as_ids = LogprobFormat(TokenPieces(tokenizer), 2, as_ids=True)
    (top,) = as_ids.completion(0, [entry], [first], "", ends=False).top_logprobs
    assert top == {f"token_id:{first}": -1.0, f"token_id:{first + 1}": -2.0}
